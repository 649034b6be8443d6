/** The changes of a view by each event. */

import type { Arguments, LoggedEvent, Usage } from "./events.js";
import { codePoints, omitUndefined, type Provenance, type QuestionView, type StepView, type TurnView } from "./view.js";

export type Changes = Partial<TurnView> & { length?: number };

export function changesBy(view: TurnView, { event, position }: LoggedEvent): Changes {
  const isOwn = !event.agent_path?.length;
  switch (event.type) {
    case "session":
      return {
        turnId: event.turn_id,
        sessionId: event.session_id,
        agent: event.agent,
        forkedFrom: event.forked_from,
        forkedAt: event.forked_at,
      };
    case "message": {
      // A later message, of a fork, closes what is open before it.
      const steps = view.steps.map((step) => (isOpen(step) ? { ...step, state: "failed" as const } : step));
      const { content: message, attachments, by, channel } = event;
      return { message, attachments, by, channel, steps, approvals: [], questions: closed(view.questions) };
    }
    case "input": {
      const { content, by, turn_id: turnId } = event;
      return { inputs: [...view.inputs, { content, by, turnId, position, answerOffset: view.memory.length }] };
    }
    case "status":
      return { status: event.text };
    case "token":
      if (!isOwn) return {};
      return { text: view.text + event.content, length: view.memory.length + codePoints(event.content) };
    case "reasoning":
      return isOwn ? { reasoning: view.reasoning + event.content } : {};
    case "handoff":
      return addStep(view, position, event, { kind: "handoff", id: `handoff-${position}`, name: event.agent, state: "succeeded" });
    case "review":
      return addStep(view, position, event, {
        kind: "review",
        id: event.step_id,
        name: event.verdict,
        state: "succeeded",
        review: event,
      });
    case "search": {
      const search = { kind: "search", id: event.step_id, name: event.tool, query: event.query } as const;
      const next = hasStep(view, "search", event.step_id) ? view : { ...view, ...addStep(view, position, event, search) };
      const used = { steps: next.steps, toolsUsed: addTool(view, event.tool) };
      if (event.phase === "started") return event.page === undefined ? used : { ...used, ...changeStep(next, search, { page: event.page }) };
      const state = event.phase === "finished" ? "succeeded" : "failed";
      return { ...used, ...changeStep(next, search, { state, page: event.page, hits: event.hits, ms: event.ms }) };
    }
    case "tool_call": {
      const call = { kind: "tool", id: event.call_id, name: event.tool, args: event.args } as const;
      const toolsUsed = addTool(view, event.tool);
      if (event.runs_on !== "client") return { ...addStep(view, position, event, call), toolsUsed };
      return { ...addStep(view, position, event, { ...call, runsOn: "client" }), toolsUsed, phase: "waiting" };
    }
    case "tool_progress":
      return changeStep(view, tool(event), omitUndefined({ progress: event.text, fraction: event.fraction }));
    case "tool_result": {
      const next = ensureTool(view, position, event, {});
      const state = event.success ? "succeeded" : "failed";
      const changed = changeStep(next, tool(event), { state, result: event.result, ms: event.ms, endPosition: position });
      const isAwaited = view.steps.some((step) => step.id === event.call_id && isAwaitedCall(step));
      const phase = isAwaited ? { phase: phaseOf({ ...view, ...changed }) } : {};
      return { ...changed, toolsUsed: addTool(view, event.tool), ...phase };
    }
    case "question": {
      const { id, prompt, schema, call_id: callId } = event;
      const question = { id, prompt, position, state: "open" as const, ...omitUndefined({ schema, callId }) };
      const others = view.questions.filter((each) => each.id !== id);
      return { questions: [...others, question as QuestionView], phase: "waiting" };
    }
    case "reply": {
      const answer = event.declined ? { state: "declined" as const } : { state: "answered" as const, value: event.value };
      const questions = view.questions.map((each) => (each.id === event.question_id ? { ...each, ...answer } : each));
      return { questions, phase: phaseOf({ ...view, questions }) };
    }
    case "approval_request": {
      const next = ensureTool(view, position, event, event.args);
      const approvals = [...view.approvals.filter((request) => request.call_id !== event.call_id), event];
      const editable = event.editable ? { editable: true } : {};
      const waiting = changeStep(next, tool(event), { state: "waiting", reason: event.reason, ...editable });
      return { ...waiting, approvals: approvals, phase: "waiting" };
    }
    case "approval_response": {
      const approvals = view.approvals.filter((request) => request.call_id !== event.call_id);
      const { approved, reason, by } = event;
      const decision = omitUndefined({ approved, reason, by }) as { approved: boolean };
      const edited = event.args ? { args: event.args } : {};
      const changed = changeStep(view, tool(event), { state: "running", decision, ...edited });
      return { ...changed, approvals, phase: phaseOf({ ...view, ...changed, approvals }) };
    }
    case "citation":
      return { citations: [...view.citations, event] };
    case "custom":
      return { custom: [...view.custom, event] };
    case "usage":
      return position > (view.forkedAt ?? 0) ? { usage: addUsage(view.usage, event) } : {};
    case "response":
      return {
        mode: event.mode,
        model: (event as Provenance).model,
        modelError: (event as Provenance).model_error,
        timings: { ...view.timings, ...event.timings },
      };
    case "error":
      return { error: event };
    case "done":
      return {
        outcome: event.outcome,
        reason: event.reason,
        joined: event.joined,
        phase: "ended",
        approvals: [],
        questions: closed(view.questions),
      };
    default:
      return {}; // An unknown type, or a restart.
  }
}

const isAwaitedCall = ({ runsOn, state }: StepView): boolean => runsOn === "client" && state === "running";

/** Returns the phase of a view that may wait: for decisions, replies, or results of the client's tools. */
export function phaseOf({ approvals, questions, steps }: Pick<TurnView, "approvals" | "questions" | "steps">): "waiting" | "running" {
  const waits = approvals.length > 0 || questions.some(({ state }) => state === "open") || steps.some(isAwaitedCall);
  return waits ? "waiting" : "running";
}

/** Returns the questions of a turn that waits no longer. */
export function closed(questions: readonly QuestionView[]): readonly QuestionView[] {
  if (!questions.some(({ state }) => state === "open")) return questions;
  return questions.map((each) => (each.state === "open" ? { ...each, state: "cancelled" } : each));
}

const isOpen = ({ state }: StepView): boolean => state === "running" || state === "waiting";

type StepName = Pick<StepView, "kind" | "id">;

function tool(event: { call_id: string }): StepName {
  return { kind: "tool", id: event.call_id };
}

function hasStep(view: TurnView, kind: StepView["kind"], id: string): boolean {
  return view.steps.some((step) => step.kind === kind && step.id === id);
}

function addStep(
  view: TurnView,
  position: number,
  event: { agent_path?: string[] },
  fields: StepName & Partial<StepView> & { name: string },
): { steps: readonly StepView[] } {
  const agentPath = event.agent_path ?? [];
  return { steps: [...view.steps, { position, answerOffset: view.memory.length, state: "running", agentPath, ...fields }] };
}

/** Returns a view that has the step of the tool call, also if the call was never logged. */
function ensureTool(
  view: TurnView,
  position: number,
  event: { call_id: string; tool: string; agent_path?: string[] },
  args: Arguments,
): TurnView {
  if (hasStep(view, "tool", event.call_id)) return view;
  return { ...view, ...addStep(view, position, event, { ...tool(event), name: event.tool, args }) };
}

/** Changes the newest step of this kind and id. */
function changeStep(view: TurnView, target: StepName, fields: Partial<StepView>): { steps: readonly StepView[] } {
  const steps = [...view.steps];
  for (let index = steps.length - 1; index >= 0; index--) {
    const step = steps[index]!;
    if (step.kind === target.kind && step.id === target.id) {
      steps[index] = { ...step, ...fields };
      return { steps };
    }
  }
  return { steps: view.steps };
}

function addTool(view: TurnView, name: string): readonly string[] {
  return view.toolsUsed.includes(name) ? view.toolsUsed : [...view.toolsUsed, name];
}

function addUsage(total: Usage = {}, more: Usage): Usage {
  const names = ["input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"] as const;
  const sums = names.map((name) => [name, add(total[name], more[name])] as const);
  return Object.fromEntries(sums.filter(([, sum]) => sum !== undefined));
}

function add(total: number | undefined, more: number | undefined): number | undefined {
  return total === undefined || more === undefined ? (total ?? more) : total + more;
}
