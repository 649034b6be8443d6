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
  LoggedEvent,
  Outcome,
  ReviewEvent,
  TurnState,
  TurnStep,
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
  /** What it was folded from, so that a restart can take back what is void. */
  readonly memory: Memory;
}

/** `log` is shared by the views that follow each other and only ever grows; `count` of it are this view's. */
interface Memory {
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

/** The next view. A `reset` gives the empty one, a `gap` what the server says the events came to; what is old, the same. */
export function applyEvent(view: TurnView, item: Followed): TurnView {
  if (item.control === "reset") return EMPTY_VIEW;
  if (item.control === "gap") return viewOfState(item.state, item.firstKept - 1);
  if (item.position <= view.position) return view;
  if (item.event.type === "restart") return rewind(view, item, item.event.from_position);
  const { length, ...changes } = changesBy(view, item);
  const phase = changes.phase ?? (view.phase === "starting" && item.position > 2 ? "running" : view.phase);
  const memory = remember(view.memory, item, length);
  return { ...view, ...changes, phase, position: item.position, memory };
}

/** All of them at once. */
export function foldTurn(items: Iterable<Followed>, view: TurnView = EMPTY_VIEW): TurnView {
  for (const item of items) view = applyEvent(view, item);
  return view;
}

/** A view to show at once; follow the turn `after` its `position`. */
export function viewOfSnapshot(snapshot: Snapshot): TurnView {
  const view = viewOfState(snapshot.state, snapshot.position);
  const phase = snapshot.phase === "queued" ? "starting" : snapshot.phase;
  return asBase({ ...view, phase, turnId: snapshot.turn_id, sessionId: snapshot.session_id, agent: snapshot.agent });
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

function codePoints(text: string): number {
  return text.length - (text.match(/[\udc00-\udfff]/g)?.length ?? 0);
}

type Changes = Partial<TurnView> & { length?: number };

function changesBy(view: TurnView, { event, position }: LoggedEvent): Changes {
  const isOwn = !event.agent_path?.length;
  switch (event.type) {
    case "session":
      return { turnId: event.turn_id, sessionId: event.session_id, agent: event.agent };
    case "message":
      return { message: event.content, by: event.by, channel: event.channel };
    case "status":
      return { status: event.text };
    case "token":
      if (!isOwn) return {};
      return { text: view.text + event.content, length: view.memory.length + codePoints(event.content) };
    case "reasoning":
      return isOwn ? { reasoning: view.reasoning + event.content } : {};
    case "handoff":
      return begin(view, position, event, { kind: "handoff", id: `handoff-${position}`, name: event.agent, state: "succeeded" });
    case "review":
      return begin(view, position, event, {
        kind: "review",
        id: event.step_id,
        name: event.verdict,
        state: "succeeded",
        review: event,
      });
    case "search": {
      const found = { kind: "search", id: event.step_id, name: event.tool, query: event.query } as const;
      const next = hasStep(view, "search", event.step_id) ? view : { ...view, ...begin(view, position, event, found) };
      const used = { steps: next.steps, toolsUsed: use(view, event.tool) };
      if (event.phase === "started") return event.page === undefined ? used : { ...used, ...change(next, found, { page: event.page }) };
      const state = event.phase === "finished" ? "succeeded" : "failed";
      return { ...used, ...change(next, found, given({ state, page: event.page, hits: event.hits, ms: event.ms })) };
    }
    case "tool_call": {
      const called = { kind: "tool", id: event.call_id, name: event.tool, args: event.args } as const;
      return { ...begin(view, position, event, called), toolsUsed: use(view, event.tool) };
    }
    case "tool_progress":
      return change(view, tool(event), given({ progress: event.text, fraction: event.fraction }));
    case "tool_result": {
      const next = ensureTool(view, position, event, {});
      const state = event.success ? "succeeded" : "failed";
      const changed = change(next, tool(event), given({ state, result: event.result, ms: event.ms }));
      return { ...changed, toolsUsed: use(view, event.tool) };
    }
    case "approval_request": {
      const next = ensureTool(view, position, event, event.args);
      const asked = [...view.approvals.filter((one) => one.call_id !== event.call_id), event];
      return { ...change(next, tool(event), given({ state: "waiting", reason: event.reason })), approvals: asked, phase: "waiting" };
    }
    case "approval_response": {
      const approvals = view.approvals.filter((one) => one.call_id !== event.call_id);
      const { approved, reason, by } = event;
      const decision = given({ approved, reason, by }) as { approved: boolean };
      const phase = approvals.length ? "waiting" : "running";
      return { ...change(view, tool(event), { state: "running", decision }), approvals, phase };
    }
    case "citation":
      return { citations: [...view.citations, event] };
    case "custom":
      return { custom: [...view.custom, event] };
    case "usage":
      return { usage: addUsage(view.usage, event) };
    case "response":
      return { mode: event.mode, timings: { ...view.timings, ...event.timings } };
    case "error":
      return { error: event };
    case "done":
      return { outcome: event.outcome, reason: event.reason, phase: "ended", approvals: [] };
    default:
      return {}; // A type that this client does not know yet, or a restart.
  }
}

/** Forgets what came after a position. What was spent stays spent. */
function rewind(view: TurnView, item: LoggedEvent, from: number): TurnView {
  const { base = EMPTY_VIEW, log, count } = view.memory;
  if (from < base.position) {
    const { turnId, sessionId, agent, message, by, channel } = view;
    const known = { ...EMPTY_VIEW, turnId, sessionId, agent, message, by, channel };
    return asBase({ ...known, phase: "running", position: item.position, isStale: true });
  }
  const kept = log.slice(0, count).filter(({ position, event }) => position <= from || event.type === "usage");
  return { ...foldTurn(kept, base), phase: "running", position: item.position };
}

function remember(memory: Memory, item: LoggedEvent, length = memory.length): Memory {
  // A view that is gone on from twice must not find the other's events in its log.
  const log = memory.log.length === memory.count && memory.count > 0 ? memory.log : memory.log.slice(0, memory.count);
  log.push(item);
  return { ...memory, log, count: memory.count + 1, length };
}

function asBase(view: TurnView): TurnView {
  const base = { ...view, memory: { log: [], count: 0, base: undefined, length: codePoints(view.text) } };
  return { ...base, memory: { ...base.memory, base } };
}

function viewOfState(state: TurnState, position: number): TurnView {
  const steps = (state.steps ?? []).map(stepOfState);
  const approvals = steps.filter((step) => step.state === "waiting").map(requestOf);
  const phase = state.outcome ? "ended" : approvals.length ? "waiting" : position > 2 ? "running" : "starting";
  return asBase({
    ...EMPTY_VIEW,
    ...given({ turnId: state.turn_id, sessionId: state.session_id, agent: state.agent, message: state.message }),
    ...given({ text: state.text, citations: state.citations, toolsUsed: state.tools_used, timings: state.timings }),
    position,
    phase,
    steps,
    approvals,
    status: state.status,
    usage: state.usage,
    mode: state.mode,
    error: state.error,
    outcome: state.outcome,
    reason: state.reason,
  });
}

function stepOfState({ answer_offset: answerOffset, agent_path: agentPath = [], ...step }: TurnStep): StepView {
  const { kind, id, name, position, state = "running", args, result, progress, reason, ms } = step;
  const seen = { kind, id, name, position, answerOffset, agentPath, state, ...given({ progress, reason, ms }) };
  if (kind === "search") {
    return { ...seen, ...given({ query: (args as { query?: string })?.query, hits: result as Hit[] | undefined }) };
  }
  if (kind === "review") return { ...seen, review: result as ReviewEvent };
  return { ...seen, ...given({ args: args as Arguments | undefined, result }) };
}

function requestOf({ id, name, args = {}, reason }: StepView): ApprovalRequestEvent {
  return { type: "approval_request", call_id: id, tool: name, args, ...given({ reason }) };
}

type StepName = Pick<StepView, "kind" | "id">;

function tool(event: { call_id: string }): StepName {
  return { kind: "tool", id: event.call_id };
}

function hasStep(view: TurnView, kind: StepView["kind"], id: string): boolean {
  return view.steps.some((step) => step.kind === kind && step.id === id);
}

function begin(
  view: TurnView,
  position: number,
  event: { agent_path?: string[] },
  begun: StepName & Partial<StepView> & { name: string },
): { steps: readonly StepView[] } {
  const agentPath = event.agent_path ?? [];
  return { steps: [...view.steps, { position, answerOffset: view.memory.length, state: "running", agentPath, ...begun }] };
}

/** The view in which the tool's call is there, also if its own event never was. */
function ensureTool(
  view: TurnView,
  position: number,
  event: { call_id: string; tool: string; agent_path?: string[] },
  args: Arguments,
): TurnView {
  if (hasStep(view, "tool", event.call_id)) return view;
  return { ...view, ...begin(view, position, event, { ...tool(event), name: event.tool, args }) };
}

/** Changes the newest step of this name. */
function change(view: TurnView, named: StepName, fields: Partial<StepView>): { steps: readonly StepView[] } {
  const steps = [...view.steps];
  for (let index = steps.length - 1; index >= 0; index--) {
    const step = steps[index]!;
    if (step.kind === named.kind && step.id === named.id) {
      steps[index] = { ...step, ...fields };
      return { steps };
    }
  }
  return { steps: view.steps };
}

function use(view: TurnView, name: string): readonly string[] {
  return view.toolsUsed.includes(name) ? view.toolsUsed : [...view.toolsUsed, name];
}

/** Without the fields that are undefined: absent is not nothing. */
function given<Fields extends object>(fields: Fields): { [Name in keyof Fields]: NonNullable<Fields[Name]> } {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [Name in keyof Fields]: NonNullable<Fields[Name]> };
}

function addUsage(total: Usage = {}, more: Usage): Usage {
  const names = ["input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"] as const;
  const sums = names.map((name) => [name, add(total[name], more[name])] as const);
  return Object.fromEntries(sums.filter(([, sum]) => sum !== undefined));
}

function add(total: number | undefined, more: number | undefined): number | undefined {
  return total === undefined || more === undefined ? (total ?? more) : total + more;
}
