/**
 * What a person sees of a turn: a pure reducer from its events, for pages and plugins alike.
 *
 * A view is never changed: what did not change in it is the same object in the next one, so `===` tells what to draw.
 */

import type {
  ApprovalRequestEvent,
  Arguments,
  CitationEvent,
  CustomEvent,
  ErrorEvent,
  Followed,
  Hit,
  Outcome,
  ReviewEvent,
  Usage,
} from "./events.js";
import type { Snapshot } from "./answers.js";

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
}

export declare const EMPTY_VIEW: TurnView;
/** The next view. A `reset` gives the empty one, a `gap` what the server says the events came to. */
export declare function applyEvent(view: TurnView, item: Followed): TurnView;
/** All of them at once. */
export declare function foldTurn(items: Iterable<Followed>, view?: TurnView): TurnView;
/** A view to show at once; follow the turn `after` its `position`. */
export declare function viewOfSnapshot(snapshot: Snapshot): TurnView;
/** A part of a text by offsets that count code points, as those of citations do. */
export declare function sliceText(text: string, start: number, end?: number): string;
