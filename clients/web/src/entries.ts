/** A turn as it is shown: what the server has told of it, or what was sent and is not yet told. */

import {
  applyEvent,
  EMPTY_VIEW,
  type Followed,
  type Snapshot,
  type TurnRecord,
  type TurnView,
  viewOfSnapshot,
} from "../../js/src/index.ts";

export interface Entry {
  /** Chosen here before the server knows of it; the turn's own id if it was started elsewhere. */
  key: string;
  turnId: string | null;
  /** The id of the turn that it continues, or the key while that has no id yet. */
  parent: string | null;
  message: string;
  agent: string | undefined;
  /** What the server is told it continues; it takes the session's last one otherwise. */
  sentParent: string | undefined;
  phase: "sending" | "refused" | "queued" | "running" | "ended";
  view: TurnView;
  /** The same turn, read again from its start, until it has caught up with `view`. */
  replay: TurnView | null;
  isStopping: boolean;
  problem: string | null;
}

const EMPTY: Entry = {
  key: "",
  turnId: null,
  parent: null,
  message: "",
  agent: undefined,
  sentParent: undefined,
  phase: "running",
  view: EMPTY_VIEW,
  replay: null,
  isStopping: false,
  problem: null,
};

/** What was just written here. */
export function sentEntry(sent: Pick<Entry, "key" | "parent" | "message" | "agent" | "sentParent">): Entry {
  return { ...EMPTY, ...sent, phase: "sending", view: { ...EMPTY_VIEW, message: sent.message } };
}

/** A turn that was started elsewhere, of which nothing but its first event is known. */
export function foreignEntry(turnId: string, parent: string | null): Entry {
  return { ...EMPTY, key: turnId, turnId, parent };
}

export function snapshotEntry(turn: Snapshot, isReplayed: boolean): Entry {
  return {
    ...EMPTY,
    key: turn.turn_id,
    turnId: turn.turn_id,
    parent: turn.parent_turn_id,
    message: turn.message,
    agent: turn.agent,
    phase: phaseOf(turn.phase),
    view: viewOfSnapshot(turn),
    replay: isReplayed ? EMPTY_VIEW : null,
  };
}

export const phaseOf = (phase: TurnRecord["phase"]): Entry["phase"] => (phase === "waiting" ? "running" : phase);

/** A turn that is read again from its start is shown when it has come as far as what is shown already. */
export function foldedEntry(entry: Entry, item: Followed): Entry {
  const replay = entry.replay && applyEvent(entry.replay, item);
  const view = replay ? (replay.position >= entry.view.position ? replay : entry.view) : applyEvent(entry.view, item);
  const phase = view.outcome ? "ended" : view.position > 2 ? "running" : entry.phase;
  return { ...entry, view, replay: view === replay ? null : replay, message: view.message || entry.message, phase };
}
