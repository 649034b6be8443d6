/**
 * The events of a turn, with the server's field names.
 *
 * A newer server may send other types; readers ignore them.
 */

/** A `joined` turn was not run: its message is an `input` of another turn. */
export type Outcome = "completed" | "failed" | "cancelled" | "interrupted" | "joined";

/** `agent_path` names the sub-agents, outermost first; it is absent for events of the turn's own agent. */
interface EventBase {
  agent_path?: string[];
}

/** Always the first: the session, the turn and its agent. A fork has the events of another turn, up to `forked_at`. */
export interface SessionEvent extends EventBase {
  type: "session";
  session_id: string;
  turn_id: string;
  agent: string;
  forked_from?: string;
  forked_at?: number;
}

/** Always the second: the message to answer. A fork with another message has a later one too. */
export interface MessageEvent extends EventBase {
  type: "message";
  content: string;
  by: string;
  channel: string;
  /** The files of the message, without their bytes. */
  attachments?: AttachedFile[];
  /** What the application sent with the message. */
  metadata?: Record<string, unknown>;
}

/** A file of a message: `sessions.fileAddress` has its bytes, by their SHA-256; a file with a `url` has none here. */
export interface AttachedFile {
  media_type: string;
  name?: string;
  size?: number;
  digest?: string;
  url?: string;
}

/** A message that has entered the running turn; `turn_id` is the turn under which it was accepted. */
export interface InputEvent extends EventBase {
  type: "input";
  content: string;
  by: string;
  channel: string;
  turn_id: string;
  /** Absent: `steer`, a message that the agent took while it ran. `collect`: it belongs to the first message. */
  mode?: "steer" | "collect";
}

/** A status line for a person. */
export interface StatusEvent extends EventBase {
  type: "status";
  text: string;
}

/** Another agent takes over. */
export interface HandoffEvent extends EventBase {
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

/** A search began or ended. */
export interface SearchEvent extends EventBase {
  type: "search";
  step_id: string;
  phase: "started" | "finished" | "failed";
  tool: string;
  query: string;
  page?: number;
  hits?: Hit[];
  ms?: number;
}

/** A review of evidence or of a draft; `kept` and `dropped` are indexes of hits. */
export interface ReviewEvent extends EventBase {
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
export interface ToolCallEvent extends EventBase {
  type: "tool_call";
  call_id: string;
  tool: string;
  args: Arguments;
  /** `client`: one of your own tools; the turn waits for its result. Absent: the server runs it. */
  runs_on?: "client";
}

/** Progress of a running tool; `fraction` is from 0 to 1. */
export interface ToolProgressEvent extends EventBase {
  type: "tool_progress";
  call_id: string;
  text?: string;
  fraction?: number;
  data?: unknown;
}

/** The result of a tool, or its failure. */
export interface ToolResultEvent extends EventBase {
  type: "tool_result";
  call_id: string;
  tool: string;
  success: boolean;
  result?: unknown;
  ms?: number;
}

/** A piece of the model's reasoning. */
export interface ReasoningEvent extends EventBase {
  type: "reasoning";
  content: string;
}

/** A piece of the answer. */
export interface TokenEvent extends EventBase {
  type: "token";
  content: string;
}

/** The source of a `[n]` in the answer. Offsets count code points, ends exclusive: see `sliceText`. */
export interface CitationEvent extends EventBase {
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
export interface ApprovalRequestEvent extends EventBase {
  type: "approval_request";
  call_id: string;
  tool: string;
  args: Arguments;
  reason?: string;
  /** True if a decision may change the arguments. */
  editable?: boolean;
}

/** A person's decision. */
export interface ApprovalResponseEvent extends EventBase {
  type: "approval_response";
  call_id: string;
  approved: boolean;
  reason?: string;
  by?: string;
  /** The arguments that the tool runs with, if the person has changed them. */
  args?: Arguments;
}

/** The JSON schema of a value that a person gives: a plain value, or a flat object of plain values. */
export type QuestionSchema = { [keyword: string]: unknown };

/** The turn waits for the answer to a question; without a schema, any value will do. */
export interface QuestionEvent extends EventBase {
  type: "question";
  id: string;
  prompt: string;
  schema?: QuestionSchema;
  /** The tool call that asks. */
  call_id?: string;
}

/** A question was answered, or declined. */
export interface ReplyEvent extends EventBase {
  type: "reply";
  question_id: string;
  value?: unknown;
  declined?: boolean;
  reason?: string;
  by?: string;
}

/** A new worker repeats the unfinished step: events after `from_position` are void. */
export interface RestartEvent extends EventBase {
  type: "restart";
  from_position: number;
  reason: string;
}

/** An event of the application. */
export interface CustomEvent extends EventBase {
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

/** The usage of a model call. Absent means unknown, not zero. */
export interface UsageEvent extends EventBase, Usage {
  type: "usage";
  model?: string;
}

/** The whole answer, once, before a completed `done`. */
export interface ResponseEvent extends EventBase {
  type: "response";
  content: string;
  citations: CitationEvent[];
  mode?: string;
  tools_used: string[];
  usage?: Usage;
  timings?: { [name: string]: number };
  model?: string;
  model_error?: string;
}

/** The reason of a failure, safe to show. */
export interface ErrorEvent extends EventBase {
  type: "error";
  error: string;
  code: string;
  retryable?: boolean;
}

/** The turn that a message has entered, and the position of its `input` event there. */
export interface Joined {
  turn_id: string;
  position: number;
}

/** Always the last, exactly once; `reason` says why a turn did not complete. */
export interface DoneEvent extends EventBase {
  type: "done";
  outcome: Outcome;
  session_id: string;
  turn_id: string;
  reason?: string;
  joined?: Joined;
}

export type TurnEvent =
  | SessionEvent
  | MessageEvent
  | InputEvent
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
  | QuestionEvent
  | ReplyEvent
  | RestartEvent
  | CustomEvent
  | UsageEvent
  | ResponseEvent
  | ErrorEvent
  | DoneEvent;

/** An event and its position. `id` is the server's name of the position, to resume `after`. */
export interface LoggedEvent {
  turnId: string;
  position: number;
  /** Absent in the stream of a session. */
  epoch?: number;
  id: string;
  event: TurnEvent;
  control?: undefined;
}

/** The events that you have are void and the log starts over; in the stream of a session, all its turns do. */
export interface ResetControl {
  control: "reset";
  turnId?: string;
  event?: undefined;
}

/** Events before `firstKept` are past their retention; `state` is the folded turn. */
export interface GapControl {
  control: "gap";
  turnId?: string;
  after: number;
  firstKept: number;
  state: TurnState;
  event?: undefined;
}

/** An item of a followed stream: an event of the log, or a control message without `event`. */
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
  runs_on?: "client";
  editable?: boolean;
}

export interface TurnQuestion {
  id: string;
  prompt: string;
  position: number;
  schema?: QuestionSchema;
  call_id?: string;
  agent_path?: string[];
  /** Absent means open. */
  state?: "open" | "answered" | "declined" | "cancelled";
  value?: unknown;
}

export interface TurnInput {
  content: string;
  turn_id: string;
  by: string;
  position: number;
  answer_offset: number;
  mode?: "steer" | "collect";
}

/** A turn as the server folds its log, up to `position`. Absent fields are empty. */
export interface TurnState {
  turn_id?: string;
  session_id?: string;
  agent?: string;
  message?: string;
  attachments?: AttachedFile[];
  position?: number;
  outcome?: Outcome;
  reason?: string;
  text?: string;
  status?: string;
  steps?: TurnStep[];
  inputs?: TurnInput[];
  questions?: TurnQuestion[];
  citations?: CitationEvent[];
  tools_used?: string[];
  mode?: string;
  usage?: Usage;
  error?: ErrorEvent;
  joined?: Joined;
  timings?: { [name: string]: number };
  forked_from?: string;
  forked_at?: number;
  restarts?: number;
  follow_ups?: { content: string; position: number; answer_offset: number; attachments?: AttachedFile[] }[];
}
