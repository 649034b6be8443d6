/**
 * What a person sees of a turn, for pages and plugins alike.
 *
 * A view is never changed: what did not change in it is the same object in the next one, so `===` tells what to draw.
 */

import type {
  ApprovalRequestEvent,
  Arguments,
  CitationEvent,
  CustomEvent,
  ErrorEvent,
  Hit,
  LoggedEvent,
  Outcome,
  ReviewEvent,
  Usage,
} from "./events.js";

export interface StepView {
  kind: "tool" | "search" | "review" | "handoff";
  id: string;
  /** The tool; of a review its verdict, of a handoff the agent. */
  name: string;
  position: number;
  /** How many code points of the answer stood before it. */
  answerOffset: number;
  state: "running" | "waiting" | "succeeded" | "failed";
  args?: Arguments;
  result?: unknown;
  /** Of a search. */
  query?: string;
  page?: number;
  hits?: Hit[];
  /** Of a review. */
  review?: ReviewEvent;
  /** What a running tool said last, and how far it is, from 0 to 1. */
  progress?: string;
  fraction?: number;
  /** Why a person is asked, and what was decided. */
  reason?: string;
  decision?: { approved: boolean; reason?: string; by?: string };
  ms?: number;
  agentPath: string[];
}

export interface TurnView {
  turnId: string;
  sessionId: string;
  agent: string;
  /** What was asked, by whom and where. */
  message: string;
  by: string;
  channel: string;
  /** Of the last event that is in here. */
  position: number;
  phase: "starting" | "running" | "waiting" | "ended";
  text: string;
  reasoning: string;
  status: string | undefined;
  steps: readonly StepView[];
  citations: readonly CitationEvent[];
  /** What a person has yet to decide. */
  approvals: readonly ApprovalRequestEvent[];
  toolsUsed: readonly string[];
  custom: readonly CustomEvent[];
  usage: Usage | undefined;
  mode: string | undefined;
  timings: { readonly [name: string]: number };
  error: ErrorEvent | undefined;
  outcome: Outcome | undefined;
  /** Why it did not complete. */
  reason: string | undefined;
  /** Part of it was begun anew, and what this view stands on is older: follow the turn again from its start. */
  isStale: boolean;
  /** What it was folded from, so that a restart can take back what is void. */
  readonly memory: Memory;
}

/** `log` is shared by the views that follow each other and only ever grows; `count` of it are this view's. */
export interface Memory {
  log: LoggedEvent[];
  count: number;
  /** What the folding began with; undefined is nothing. */
  base: TurnView | undefined;
  /** Of the text, in code points. */
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
  citations: [],
  approvals: [],
  toolsUsed: [],
  custom: [],
  usage: undefined,
  mode: undefined,
  timings: {},
  error: undefined,
  outcome: undefined,
  reason: undefined,
  isStale: false,
  memory: { log: [], count: 0, base: undefined, length: 0 },
};

/** A view that folding can begin with. */
export function asBase(view: TurnView): TurnView {
  const base = { ...view, memory: { log: [], count: 0, base: undefined, length: codePoints(view.text) } };
  return { ...base, memory: { ...base.memory, base } };
}

/** A part of a text by offsets that count code points, as those of citations do. */
export function sliceText(text: string, start: number, end = Infinity): string {
  return text.slice(unitOffset(text, start), unitOffset(text, end));
}

function unitOffset(text: string, codePoints: number): number {
  let unit = 0;
  for (let passed = 0; passed < codePoints && unit < text.length; passed++) {
    unit += text.codePointAt(unit)! > 0xffff ? 2 : 1;
  }
  return unit;
}

/** How many they are. */
export function codePoints(text: string): number {
  return text.length - (text.match(/[\udc00-\udfff]/g)?.length ?? 0);
}

/** Without the fields that are undefined: absent is not nothing. */
export function given<Fields extends object>(fields: Fields): { [Name in keyof Fields]: NonNullable<Fields[Name]> } {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [Name in keyof Fields]: NonNullable<Fields[Name]> };
}
