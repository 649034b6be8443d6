/** Views of a state that the server has folded: snapshots, and gaps. */

import type { Snapshot } from "./api_types.js";
import type {
  ApprovalRequestEvent,
  Arguments,
  Hit,
  ReviewEvent,
  TurnInput,
  TurnQuestion,
  TurnState,
  TurnStep,
} from "./events.js";
import {
  asBase,
  EMPTY_VIEW,
  omitUndefined,
  type InputView,
  type Provenance,
  type QuestionView,
  type StepView,
  type TurnView,
} from "./view.js";
import { closed, phaseOf } from "./view_changes.js";

/** Returns a view to show at once; follow the turn `after` its `position`. */
export function viewOfSnapshot(snapshot: Snapshot): TurnView {
  const view = viewOfState(snapshot.state, snapshot.position);
  const phase = snapshot.phase === "queued" ? "starting" : snapshot.phase;
  return asBase({ ...view, phase, turnId: snapshot.turn_id, sessionId: snapshot.session_id, agent: snapshot.agent });
}

/** Returns the view of a state at a position. */
export function viewOfState(state: TurnState, position: number): TurnView {
  const steps = (state.steps ?? []).map(stepOfState);
  const approvals = state.outcome ? [] : steps.filter((step) => step.state === "waiting").map(requestOf);
  const asked = (state.questions ?? []).map(questionOfState);
  const questions = state.outcome ? closed(asked) : asked;
  const followUp = state.follow_ups?.at(-1);
  const phase = state.outcome ? "ended" : position > 2 ? phaseOf({ approvals, questions, steps }) : "starting";
  return asBase({
    ...EMPTY_VIEW,
    ...omitUndefined({ turnId: state.turn_id, sessionId: state.session_id, agent: state.agent }),
    ...omitUndefined({ message: followUp?.content ?? state.message, attachments: (followUp ?? state).attachments }),
    ...omitUndefined({ text: state.text, citations: state.citations, toolsUsed: state.tools_used, timings: state.timings }),
    position,
    phase,
    steps,
    inputs: (state.inputs ?? []).map(inputOfState),
    approvals,
    questions,
    status: state.status,
    usage: state.usage,
    mode: state.mode,
    model: (state as Provenance).model,
    modelError: (state as Provenance).model_error,
    error: state.error,
    outcome: state.outcome,
    reason: state.reason,
    forkedFrom: state.forked_from,
    forkedAt: state.forked_at,
    restarts: state.restarts ?? 0,
    joined: state.joined,
  });
}

function inputOfState({ turn_id: turnId, answer_offset: answerOffset, content, by, position }: TurnInput): InputView {
  return { content, by, turnId, position, answerOffset };
}

function questionOfState({ call_id: callId, state = "open", id, prompt, position, schema, value }: TurnQuestion): QuestionView {
  return { id, prompt, position, state, ...omitUndefined({ schema, callId, value }) } as QuestionView;
}

function stepOfState({ answer_offset: answerOffset, agent_path: agentPath = [], ...step }: TurnStep): StepView {
  const { kind, id, name, position, state = "running", args, result, progress, reason, ms, editable, runs_on: runsOn } = step;
  const details = omitUndefined({ progress, reason, ms, editable, runsOn });
  const seen = { kind, id, name, position, answerOffset, agentPath, state, ...details };
  if (kind === "search") {
    return { ...seen, ...omitUndefined({ query: (args as { query?: string })?.query, hits: result as Hit[] | undefined }) };
  }
  if (kind === "review") return { ...seen, review: result as ReviewEvent };
  return { ...seen, ...omitUndefined({ args: args as Arguments | undefined, result }) };
}

function requestOf({ id, name, args = {}, reason, editable, agentPath }: StepView): ApprovalRequestEvent {
  const path = agentPath.length ? { agent_path: agentPath } : {};
  return { type: "approval_request", call_id: id, tool: name, args, ...omitUndefined({ reason, editable }), ...path };
}
