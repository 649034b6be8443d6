/**
 * What can happen in a turn, as the server sends it. The names are those of the wire.
 *
 * A server that is newer than this client may send types that are not listed here: a reader ignores them.
 */

export type Outcome = "completed" | "failed" | "cancelled" | "interrupted";

/** The sub-agents, outermost first, that something happened in; absent for what the turn's own agent does. */
interface Happened {
  agent_path?: string[];
}

/** Always the first: which session and turn this log belongs to, and who answers. */
export interface SessionEvent extends Happened {
  type: "session";
  session_id: string;
  turn_id: string;
  agent: string;
}

/** Always the second: what was asked. */
export interface MessageEvent extends Happened {
  type: "message";
  content: string;
  by: string;
  channel: string;
}

/** A line for a person about what is going on. */
export interface StatusEvent extends Happened {
  type: "status";
  text: string;
}

/** Another agent has taken over. */
export interface HandoffEvent extends Happened {
  type: "handoff";
  agent: string;
}

/** One piece of evidence; `index` is its number in this turn. */
export interface Hit {
  index: number;
  document_id: string;
  chunk_id?: string;
  title?: string;
  url?: string;
  page_number?: number;
  text?: string;
  score?: number;
  heading?: string;
}

/** A step of retrieval began or ended. */
export interface SearchEvent extends Happened {
  type: "search";
  step_id: string;
  phase: "started" | "finished" | "failed";
  tool: string;
  query: string;
  page?: number;
  hits?: Hit[];
  ms?: number;
}

/** Evidence, or a draft, was judged; `kept` and `dropped` are indexes of hits. */
export interface ReviewEvent extends Happened {
  type: "review";
  step_id: string;
  iteration: number;
  verdict: "approved" | "rejected";
  feedback?: string;
  kept?: number[];
  dropped?: number[];
  missing?: string[];
  next_queries?: string[];
  rounds_left?: number;
  matched?: string[];
  method?: string;
}

export type Arguments = { [name: string]: unknown };

/** A tool is about to run. */
export interface ToolCallEvent extends Happened {
  type: "tool_call";
  call_id: string;
  tool: string;
  args: Arguments;
}

/** A running tool says how far it is; `fraction` is from 0 to 1. */
export interface ToolProgressEvent extends Happened {
  type: "tool_progress";
  call_id: string;
  text?: string;
  fraction?: number;
  data?: unknown;
}

/** A tool has ended, well or badly. */
export interface ToolResultEvent extends Happened {
  type: "tool_result";
  call_id: string;
  tool: string;
  success: boolean;
  result?: unknown;
  ms?: number;
}

/** A piece of the model's own thinking, where it shows it. */
export interface ReasoningEvent extends Happened {
  type: "reasoning";
  content: string;
}

/** A piece of the answer. */
export interface TokenEvent extends Happened {
  type: "token";
  content: string;
}

/** What a `[n]` in the answer stands on. Offsets count code points, ends exclusive: see `sliceText`. */
export interface CitationEvent extends Happened {
  type: "citation";
  index: number;
  document_id: string;
  chunk_id?: string;
  title?: string;
  url?: string;
  page_number?: number;
  supporting_quote?: string;
  source_tool?: string;
  score?: number;
  source_start?: number;
  source_end?: number;
  answer_start?: number;
  answer_end?: number;
  heading?: string;
}

/** A person must decide before the tool may run. */
export interface ApprovalRequestEvent extends Happened {
  type: "approval_request";
  call_id: string;
  tool: string;
  args: Arguments;
  reason?: string;
}

/** A person has decided. */
export interface ApprovalResponseEvent extends Happened {
  type: "approval_response";
  call_id: string;
  approved: boolean;
  reason?: string;
  by?: string;
}

/** A new worker runs the unfinished step again: what came after `from_position` is void. */
export interface RestartEvent extends Happened {
  type: "restart";
  from_position: number;
  reason: string;
}

/** The application's own. */
export interface CustomEvent extends Happened {
  type: "custom";
  name: string;
  data?: unknown;
}

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cached_input_tokens?: number;
  reasoning_tokens?: number;
}

/** What a model call cost. Absent is not zero: the provider did not say. */
export interface UsageEvent extends Happened, Usage {
  type: "usage";
  model?: string;
}

/** The whole answer, once, before a completed `done`. */
export interface ResponseEvent extends Happened {
  type: "response";
  content: string;
  citations: CitationEvent[];
  mode?: string;
  tools_used: string[];
  usage?: Usage;
  timings?: { [name: string]: number };
}

/** Why the turn failed, in words that are safe to show. */
export interface ErrorEvent extends Happened {
  type: "error";
  error: string;
  code: string;
  retryable?: boolean;
}

/** Always the last, exactly once; `reason` says why a turn did not complete. */
export interface DoneEvent extends Happened {
  type: "done";
  outcome: Outcome;
  session_id: string;
  turn_id: string;
  reason?: string;
}

export type TurnEvent =
  | SessionEvent
  | MessageEvent
  | StatusEvent
  | HandoffEvent
  | SearchEvent
  | ReviewEvent
  | ToolCallEvent
  | ToolProgressEvent
  | ToolResultEvent
  | ReasoningEvent
  | TokenEvent
  | CitationEvent
  | ApprovalRequestEvent
  | ApprovalResponseEvent
  | RestartEvent
  | CustomEvent
  | UsageEvent
  | ResponseEvent
  | ErrorEvent
  | DoneEvent;

/** An event and its place. `id` is what the server calls that place; going on `after` it misses and repeats nothing. */
export interface LoggedEvent {
  turnId: string;
  position: number;
  /** Absent in the stream of a session. */
  epoch?: number;
  id: string;
  event: TurnEvent;
  control?: undefined;
}

/** What you have is not of this log, and it starts over: forget it. In the stream of a session, of all its turns. */
export interface ResetControl {
  control: "reset";
  turnId?: string;
  event?: undefined;
}

/** Events up to `firstKept` are past their retention; `state` is what the whole turn came to. */
export interface GapControl {
  control: "gap";
  turnId?: string;
  after: number;
  firstKept: number;
  state: TurnState;
  event?: undefined;
}

/** What following yields: `item.event` is an event of the log; without one it is a word about the log. */
export type Followed = LoggedEvent | ResetControl | GapControl;

export interface TurnStep {
  kind: "tool" | "search" | "review" | "handoff";
  id: string;
  name: string;
  position: number;
  answer_offset: number;
  args?: unknown;
  /** Absent means running. */
  state?: "running" | "waiting" | "succeeded" | "failed";
  result?: unknown;
  progress?: string;
  reason?: string;
  ms?: number;
  agent_path?: string[];
}

/** A turn as the server folds its log, up to `position`. What is absent is empty. */
export interface TurnState {
  turn_id?: string;
  session_id?: string;
  agent?: string;
  message?: string;
  position?: number;
  outcome?: Outcome;
  reason?: string;
  text?: string;
  status?: string;
  steps?: TurnStep[];
  citations?: CitationEvent[];
  tools_used?: string[];
  mode?: string;
  usage?: Usage;
  error?: ErrorEvent;
  timings?: { [name: string]: number };
}
