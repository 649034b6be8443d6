/**
 * A turn as a page or plugin shows it.
 *
 * Views are immutable: unchanged parts are the same objects in the next view, so `===` tells what to redraw.
 */

import type {
  ApprovalRequestEvent,
  Arguments,
  AttachedFile,
  CitationEvent,
  CustomEvent,
  ErrorEvent,
  Hit,
  Joined,
  LoggedEvent,
  Outcome,
  QuestionSchema,
  ReviewEvent,
  Usage,
} from "./events.js";

/** The model that has written an answer, or failed to, and why it failed. Older servers send neither. */
export interface Provenance {
  model?: string;
  model_error?: string;
}

export interface StepView {
  kind: "tool" | "search" | "review" | "handoff";
  id: string;
  /** The tool, the verdict of a review, or the agent of a handoff. */
  name: string;
  position: number;
  /** The offset in the answer, in code points. */
  answerOffset: number;
  state: "running" | "waiting" | "succeeded" | "failed";
  args?: Arguments;
  result?: unknown;
  /** Only for a search. */
  query?: string;
  page?: number;
  hits?: Hit[];
  /** Only for a review. */
  review?: ReviewEvent;
  /** The last progress text of a running tool, and its fraction from 0 to 1. */
  progress?: string;
  fraction?: number;
  /** The reason of an approval request, and the decision. */
  reason?: string;
  decision?: { approved: boolean; reason?: string; by?: string };
  /** True if the decision may change the arguments. */
  editable?: boolean;
  /** `client` for one of the client's own tools: while it runs, the turn waits for its result. */
  runsOn?: "client";
  ms?: number;
  /** The position of a tool's result; not known in the view of a snapshot. */
  endPosition?: number;
  agentPath: string[];
}

/** A question of the turn; an open one is what the turn waits for. */
export interface QuestionView {
  id: string;
  prompt: string;
  schema?: QuestionSchema;
  callId?: string;
  position: number;
  state: "open" | "answered" | "declined" | "cancelled";
  value?: unknown;
}

/** A message that has entered the turn, and its place: the offset in the answer, in code points. */
export interface InputView {
  content: string;
  by: string;
  turnId: string;
  position: number;
  answerOffset: number;
}

export interface TurnView {
  turnId: string;
  sessionId: string;
  agent: string;
  /** The question, its author and its channel. */
  message: string;
  /** The files of the question; absent if it has none. */
  attachments?: AttachedFile[];
  by: string;
  channel: string;
  /** The position of the last folded event. */
  position: number;
  phase: "starting" | "running" | "waiting" | "ended";
  text: string;
  reasoning: string;
  status: string | undefined;
  steps: readonly StepView[];
  /** The messages that were sent into the turn while it ran. */
  inputs: readonly InputView[];
  citations: readonly CitationEvent[];
  /** The approval requests without a decision. */
  approvals: readonly ApprovalRequestEvent[];
  questions: readonly QuestionView[];
  toolsUsed: readonly string[];
  custom: readonly CustomEvent[];
  usage: Usage | undefined;
  mode: string | undefined;
  /** See `Provenance`. */
  model: string | undefined;
  modelError: string | undefined;
  timings: { readonly [name: string]: number };
  error: ErrorEvent | undefined;
  outcome: Outcome | undefined;
  /** The reason why the turn did not complete. */
  reason: string | undefined;
  /** The turn that this one was forked from, and the last position that they share. */
  forkedFrom: string | undefined;
  forkedAt: number | undefined;
  /** The number of times that another worker has continued the turn. */
  restarts: number;
  /** Where the message of a joined turn is. */
  joined: Joined | undefined;
  /** True if a restart reaches behind the start of this view: follow the turn from its start. */
  isStale: boolean;
  /** The folded events, so that a restart can drop void ones. */
  readonly memory: Memory;
}

/** `log` is shared by successive views and only grows; the first `count` events belong to this view. */
export interface Memory {
  log: LoggedEvent[];
  count: number;
  /** The view that folding began with; undefined for the empty view. */
  base: TurnView | undefined;
  /** The length of the text in code points. */
  length: number;
}

export const EMPTY_VIEW: TurnView = {
  turnId: "",
  sessionId: "",
  agent: "",
  message: "",
  by: "",
  channel: "",
  position: 0,
  phase: "starting",
  text: "",
  reasoning: "",
  status: undefined,
  steps: [],
  inputs: [],
  citations: [],
  approvals: [],
  questions: [],
  toolsUsed: [],
  custom: [],
  usage: undefined,
  mode: undefined,
  model: undefined,
  modelError: undefined,
  timings: {},
  error: undefined,
  outcome: undefined,
  reason: undefined,
  forkedFrom: undefined,
  forkedAt: undefined,
  restarts: 0,
  joined: undefined,
  isStale: false,
  memory: { log: [], count: 0, base: undefined, length: 0 },
};

/** Returns a view that folding can begin with. */
export function asBase(view: TurnView): TurnView {
  const base = { ...view, memory: { log: [], count: 0, base: undefined, length: codePoints(view.text) } };
  return { ...base, memory: { ...base.memory, base } };
}

/** Returns a slice of a text by code point offsets, as citations have them. */
export function sliceText(text: string, start: number, end = Infinity): string {
  return text.slice(unitOffset(text, start), unitOffset(text, end));
}

/** Returns the UTF-16 offset of a code point offset. */
export function unitOffset(text: string, codePoints: number): number {
  let unit = 0;
  for (let count = 0; count < codePoints && unit < text.length; count++) {
    unit += text.codePointAt(unit)! > 0xffff ? 2 : 1;
  }
  return unit;
}

/** Returns the number of code points. */
export function codePoints(text: string): number {
  return text.length - (text.match(/[\udc00-\udfff]/g)?.length ?? 0);
}

/** Returns the fields that are not undefined. */
export function omitUndefined<Fields extends object>(fields: Fields): { [Name in keyof Fields]: NonNullable<Fields[Name]> } {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [Name in keyof Fields]: NonNullable<Fields[Name]> };
}
