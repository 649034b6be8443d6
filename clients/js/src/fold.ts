/** A pure reducer from events to views. */

import type { Followed, LoggedEvent } from "./events.js";
import { viewOfState } from "./snapshot_view.js";
import { asBase, EMPTY_VIEW, type Memory, type TurnView } from "./view.js";
import { changesBy, phaseOf } from "./view_changes.js";

/** Returns the next view. A `reset` gives the empty view, a `gap` the server's state, an old event the same view. */
export function applyEvent(view: TurnView, item: Followed): TurnView {
  if (item.control === "reset") return EMPTY_VIEW;
  if (item.control === "gap") return viewOfState(item.state, item.firstKept - 1);
  if (item.position <= view.position) return view;
  if (item.event.type === "restart") {
    const restarts = view.restarts + (item.event.reason === "forked" ? 0 : 1);
    return { ...rewind(view, item, item.event.from_position), restarts };
  }
  const { length, ...changes } = changesBy(view, item);
  const phase = changes.phase ?? (view.phase === "starting" && item.position > 2 ? "running" : view.phase);
  const memory = remember(view.memory, item, length);
  return { ...view, ...changes, phase, position: item.position, memory };
}

/** Folds many items. */
export function foldTurn(items: Iterable<Followed>, view: TurnView = EMPTY_VIEW): TurnView {
  for (const item of items) view = applyEvent(view, item);
  return view;
}

/** The events that a restart does not make void. */
const KEPT = ["usage", "input", "question", "reply"];

/** Drops the events after a position, but not the user's messages, the questions and the usage. */
function rewind(view: TurnView, item: LoggedEvent, from: number): TurnView {
  const { base = EMPTY_VIEW, log, count } = view.memory;
  if (from < base.position) {
    const { turnId, sessionId, agent, message, by, channel } = view;
    const identity = { ...EMPTY_VIEW, turnId, sessionId, agent, message, by, channel };
    return asBase({ ...identity, phase: "running", position: item.position, isStale: true });
  }
  const remaining = log.slice(0, count).filter(({ position, event }) => position <= from || KEPT.includes(event.type));
  const before = foldTurn(remaining, base);
  const tools = before.steps.filter(({ kind }) => kind === "tool" || kind === "search").map(({ name }) => name);
  return { ...before, toolsUsed: [...new Set(tools)], phase: phaseOf(before), position: item.position };
}

function remember(memory: Memory, item: LoggedEvent, length = memory.length): Memory {
  // Two views that continue the same view must not share a log.
  const log = memory.log.length === memory.count && memory.count > 0 ? memory.log : memory.log.slice(0, memory.count);
  log.push(item);
  return { ...memory, log, count: memory.count + 1, length };
}
