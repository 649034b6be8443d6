/** A turn on the page: confirmed by the server, or just sent. */

import {
  applyEvent,
  type Attachment,
  EMPTY_VIEW,
  type Followed,
  type Snapshot,
  type TurnRecord,
  type TurnView,
  viewOfSnapshot,
} from "../../js/src/index.ts";

/** What happens to a message that is sent while a turn runs. */
export type OnBusy = "steer" | "enqueue" | "interrupt";

export interface Entry {
  /** An id of this page; the turn id if another client started the turn. */
  key: string;
  turnId: string | null;
  /** The id of the parent turn, or its key while it has no id. */
  parent: string | null;
  message: string;
  /** The files that are sent with the message. */
  attachments: Attachment[];
  agent: string | undefined;
  onBusy: OnBusy;
  /** The parent that is sent to the server. Default: the session's last turn. */
  sentParent: string | undefined;
  phase: "sending" | "refused" | "queued" | "running" | "ended";
  /** When it began to run, for its clock. */
  startedAt: number | null;
  view: TurnView;
  /** The same turn, read again from its start, until it reaches the position of `view`. */
  replay: TurnView | null;
  isStopping: boolean;
  problem: string | null;
  feedback: Feedback | null;
}

export interface Feedback {
  value: "up" | "down";
  note?: string | null;
}

const EMPTY: Entry = {
  key: "",
  turnId: null,
  parent: null,
  message: "",
  attachments: [],
  agent: undefined,
  onBusy: "enqueue",
  sentParent: undefined,
  phase: "running",
  startedAt: null,
  view: EMPTY_VIEW,
  replay: null,
  isStopping: false,
  problem: null,
  feedback: null,
};

/** Returns the entry of a message that was just sent. */
export function sentEntry(sent: Pick<Entry, "key" | "parent" | "message" | "attachments" | "agent" | "onBusy" | "sentParent">): Entry {
  return { ...EMPTY, ...sent, phase: "sending", view: { ...EMPTY_VIEW, message: sent.message } };
}

/** Returns the entry of a turn that another client started. */
export function remoteEntry(turnId: string, parent: string | null): Entry {
  return { ...EMPTY, key: turnId, turnId, parent };
}

export function snapshotEntry(turn: Snapshot & { feedback?: Feedback | null }, isReplayed: boolean): Entry {
  return {
    ...EMPTY,
    key: turn.turn_id,
    turnId: turn.turn_id,
    parent: turn.parent_turn_id,
    message: turn.message,
    attachments: turn.attachments ?? [],
    agent: turn.agent,
    phase: phaseOf(turn.phase),
    startedAt: turn.started_at ? Date.parse(turn.started_at) : null,
    view: viewOfSnapshot(turn),
    feedback: turn.feedback ?? null,
    replay: isReplayed ? EMPTY_VIEW : null,
  };
}

export const phaseOf = (phase: TurnRecord["phase"]): Entry["phase"] => (phase === "waiting" ? "running" : phase);

/** Folds an item. A replayed turn is shown when it has reached the position of the shown view. */
export function foldedEntry(entry: Entry, item: Followed): Entry {
  const replay = entry.replay && applyEvent(entry.replay, item);
  const view = replay ? (replay.position >= entry.view.position ? replay : entry.view) : applyEvent(entry.view, item);
  const phase = view.outcome ? "ended" : view.position > 2 ? "running" : entry.phase;
  const rest = { view, replay: view === replay ? null : replay, message: view.message || entry.message, attachments: view.attachments ?? entry.attachments };
  return phase === "running" ? runningEntry({ ...entry, ...rest }) : { ...entry, ...rest, phase };
}

/** Returns the entry of a turn that runs, with its clock started. */
export function runningEntry(entry: Entry): Entry {
  return { ...entry, phase: "running", startedAt: entry.startedAt ?? Date.now() };
}
