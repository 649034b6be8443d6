/** What is asked of the server's JSON routes, and what they answer. The names are those of the wire. */

import type { Arguments, Outcome, TurnState } from "./events.js";

export type Phase = "queued" | "running" | "waiting" | "ended";

export interface Attachment {
  media_type: string;
  name?: string;
  /** Base64; or a `url`, which the server does not fetch. */
  data?: string;
  url?: string;
}

/** A message to an agent; only `message` is needed. */
export interface StartOptions {
  message: string;
  /** One of the server's, or any of your own, which is made when it is new; without it a new session begins. */
  sessionId?: string;
  agent?: string;
  /** An id of your own; the same one again joins the same turn. */
  turnId?: string;
  /** The turn of the session that it goes on after: the last one without it, none if it is empty. */
  parentTurnId?: string;
  onBusy?: "enqueue" | "reject" | "interrupt";
  /** What happens to the turn when its last reader leaves. */
  onDisconnect?: "continue" | "cancel" | { grace: number };
  review?: boolean;
  answer?: "synthesis" | "direct";
  attachments?: Attachment[];
  /** Made up if there is none: a start that is tried again never asks twice. */
  idempotencyKey?: string;
  signal?: AbortSignal;
}

export type EnqueueOptions = StartOptions & { sessionId: string };

export interface TurnRecord {
  turn_id: string;
  session_id: string;
  external_id: string | null;
  parent_turn_id: string | null;
  agent: string;
  message: string;
  phase: Phase;
  outcome: Outcome | null;
  last_position: number;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
}

/** A turn so far; following it `after` its `position` misses and repeats nothing. */
export interface Snapshot extends TurnRecord {
  position: number;
  state: TurnState;
}

/** A person's decision about a tool call. With `args` it holds only for exactly these. */
export interface Decision {
  approved: boolean;
  reason?: string;
  args?: Arguments;
}

export interface Session {
  id: string;
  external_id: string | null;
  title: string | null;
  turn_count: number;
  created_at: string;
  updated_at: string;
}

export interface SessionPage {
  sessions: Session[];
  /** Give it as `before` for the next page; null on the last. */
  next: string | null;
}

export interface SessionWithTurns extends Session {
  turns: TurnRecord[];
}

export interface SessionExport extends Session {
  turns: Snapshot[];
  transcript: { role: "user" | "assistant" | "tool"; content: string }[];
}

export interface TurnwireDocument {
  id: string;
  name: string;
  title: string;
  format: string;
  /** Given by the operator, and so not yours to delete. */
  shared: boolean;
  bytes: number;
  characters: number;
  pages: number | null;
  passages: number;
  sha256: string;
  indexed_at: string;
}

export interface DocumentPage {
  documents: TurnwireDocument[];
  /** Give it as `after` for the next page; null on the last. */
  next: string | null;
  reading: { under_way: boolean; done: number; total: number };
  embedding: { done: number; total: number };
}

/** A document whole (`text`), or what stands around a citation (`passage`). */
export interface DocumentText extends TurnwireDocument {
  text?: string;
  passage?: {
    start: number;
    end: number;
    before: string;
    quote: string;
    after: string;
    heading: string | null;
    page_number: number | null;
    line: number;
  };
}

export interface Agent {
  name: string;
  /** Whether it answers when nobody is named. */
  is_default: boolean;
  takes_attachments: boolean;
}

/** Who you are to the server. */
export interface Me {
  /** Null for who presents no valid key. */
  principal: string | null;
  scopes: string[];
  login_required: boolean;
  logged_in: boolean;
  version: string;
  documents: boolean;
  upload_suffixes: string[];
}

export interface Budget {
  limit: number | null;
  used: number;
  left: number | null;
  resets_at: string;
}
