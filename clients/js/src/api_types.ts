/** The requests and responses of the server's JSON routes, with their field names. */

import type { ClientTool, Handlers } from "./answers.js";
import type { Arguments, AttachedFile, Outcome, TurnState } from "./events.js";

export type Phase = "queued" | "running" | "waiting" | "ended";

/** A file to send: `data`, a `url` that the server does not fetch, or the `digest` of one that the session has. */
export interface Attachment {
  /** Needed, unless `data` is a data URL or there is a `digest`. */
  media_type?: string;
  name?: string;
  /** The file in base64, or as a data URL. */
  data?: string;
  url?: string;
  digest?: string;
}

/** A message to an agent; only `message` is required. */
/** How the model answers, under the server's names. An option that the agent does not take is refused. */
export interface ModelOptions {
  /** Instructions after the agent's own; agents take them only if their operator allows it. */
  instructions?: string;
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  stop?: string | string[];
  tool_choice?: "auto" | "none" | "required" | { name: string };
  response_format?: { type: "text" | "json_object" } | { type: "json_schema"; json_schema: { schema: object; name?: string; strict?: boolean } };
}

export interface StartOptions extends Handlers {
  message: string;
  /** The server's id, or your own, which is created if it is new. Default: a new session. */
  sessionId?: string;
  agent?: string;
  /** Your own id; a repeated id joins the same turn. */
  turnId?: string;
  /** The turn to continue. Default: the last one; an empty string continues none. */
  parentTurnId?: string;
  /** What happens if a turn runs: `steer` puts the message into it, `collect` makes one next turn of all such messages. */
  onBusy?: "enqueue" | "reject" | "interrupt" | "steer" | "collect";
  /** The fate of the turn when its last reader leaves. */
  onDisconnect?: "continue" | "cancel" | { grace: number };
  review?: boolean;
  answer?: "synthesis" | "direct";
  attachments?: Attachment[];
  /** Data of your application for the agent, up to 16 KiB as JSON. */
  metadata?: Record<string, unknown>;
  /** Tools that this program runs. The model may call them, and the turn waits for their results. */
  tools?: readonly ClientTool[];
  /** How the model answers, for agents that take it from clients. */
  modelOptions?: ModelOptions;
  /** Default: a random key, so that a retry never starts a second turn. */
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
  /** The files of the message; absent if it has none. */
  attachments?: AttachedFile[];
  phase: Phase;
  outcome: Outcome | null;
  last_position: number;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  /** In snapshots and in the turns of a session; null if there is none. */
  feedback?: Feedback | null;
}

/** Where a turn is forked, and what the new turn goes on with; by default it continues as it is. */
export interface ForkOptions {
  /** The last position that the turns share. */
  position: number;
  message?: string;
  agent?: string;
  model?: string;
}

export interface Feedback {
  value: "up" | "down";
  note: string | null;
  at: string;
}

/** A link by which anybody can read a session. The server shows it once. */
export interface SharedLink {
  url: string;
  token: string;
  shared_at: string;
}

/** The state of a turn at a position; follow it `after` that position. */
export interface Snapshot extends TurnRecord {
  position: number;
  state: TurnState;
}

/** A person's decision about a tool call. With `args` it is valid only for these arguments. */
export interface Decision {
  approved: boolean;
  reason?: string;
  args?: Arguments;
  /** The arguments that the tool gets instead, if the request is `editable`. */
  edited_args?: Arguments;
}

/** The answer to a question: a value that fits its schema, or that it is declined. */
export type Reply = { value: unknown } | { declined: true; reason?: string };

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
  /** The `before` of the next page; null on the last page. */
  next: string | null;
}

export interface SessionWithTurns extends Session {
  /** When the newest link that shares it was made; null if there is none. */
  shared_at: string | null;
  turns: TurnRecord[];
}

export interface SessionExport extends Session {
  shared_at: string | null;
  turns: Snapshot[];
  transcript: { role: "user" | "assistant" | "tool"; content: string }[];
}

export interface TurnwireDocument {
  id: string;
  name: string;
  title: string;
  format: string;
  /** Provided by the operator, so you cannot delete it. */
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
  /** The `after` of the next page; null on the last page. */
  next: string | null;
  reading: { under_way: boolean; done: number; total: number };
  embedding: { done: number; total: number };
}

/** A whole document (`text`), or a citation with its surroundings (`passage`). */
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
  /** True if it answers messages that name no agent. */
  is_default: boolean;
  takes_attachments: boolean;
  /** The media types of files that it takes, such as `image/*`; absent if it takes none. */
  attachment_types?: string[];
  /** The names of the model options that it takes from clients; absent if it takes none, or decides itself. */
  model_options?: string[];
  description: string | null;
  /** Messages to begin with. */
  starters: string[];
}

/** The caller, as the server sees it. */
export interface Me {
  /** Null without a valid key. */
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
