/** Texts for numbers, steps and times. */

import type { Arguments, StepView, TurnView } from "../../js/src/index.ts";

export function duration(ms: number): string {
  if (ms < 1) return "under 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export const count = (number: number, singular: string, many = `${singular}s`): string =>
  `${number.toLocaleString("en")} ${number === 1 ? singular : many}`;

export function bytes(number: number): string {
  if (number < 1000) return `${number} B`;
  return number < 1e6 ? `${(number / 1e3).toFixed(0)} KB` : `${(number / 1e6).toFixed(1)} MB`;
}

const ENDS = { failed: "Failed", cancelled: "Stopped", interrupted: "Interrupted", completed: "Done", joined: "Added to the answer before" } as const;

/** Returns the status line, which screen readers announce. */
export function statusOf(view: TurnView): string {
  if (view.outcome) return view.outcome === "completed" ? "Answer complete" : ENDS[view.outcome];
  if (view.approvals.length) return `Waiting for your decision about ${view.approvals[0]!.tool}`;
  if (view.questions.some(({ state }) => state === "open")) return "Waiting for your answer";
  const step = view.steps.findLast(({ state }) => state === "running");
  if (step?.runsOn === "client") return `Waiting for the result of ${step.name} from the client that runs it`;
  if (step) return step.kind === "tool" ? `Running ${step.name}` : stepTitle(step);
  if (view.text) return "Answering";
  return view.status ?? (view.reasoning ? "Thinking" : "Working");
}

export const outcomeText = (outcome: keyof typeof ENDS): string => ENDS[outcome];

export function stepTitle(step: StepView): string {
  const isOver = step.state === "succeeded" || step.state === "failed";
  switch (step.kind) {
    case "search":
      return step.state === "failed" ? "Search failed" : isOver ? "Searched" : "Searching";
    case "review":
      return step.name === "approved" ? "Evidence is sufficient" : "Evidence is insufficient";
    case "handoff":
      return `Handed over to ${step.name}`;
    case "tool":
      return step.name;
  }
}

/** Returns a one-line summary of the steps. */
export function stepsSummary(steps: readonly StepView[]): string {
  const number = (kind: StepView["kind"]) => steps.filter((step) => step.kind === kind).length;
  const parts: string[] = [];
  const searches = number("search");
  if (searches) parts.push(searches === 1 ? "Searched once" : `Searched ${searches} times`);
  if (number("review")) parts.push(`${count(number("review"), "review")}`);
  const failed = steps.filter((step) => step.kind === "tool" && step.state === "failed").length;
  if (number("tool")) parts.push(`${count(number("tool"), "tool call")}${failed ? `, ${failed} failed` : ""}`);
  if (number("handoff")) parts.push(`${count(number("handoff"), "handover")}`);
  return parts.join(" · ");
}

/** Returns arguments as lines of `name: value`. A text is quoted only if it could be taken for something else. */
export function argumentLines(args: Arguments): string[] {
  return Object.entries(args).map(([name, value]) => `${name}: ${valueText(value)}`);
}

function valueText(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  return value === value.trim() && !isJson(value) ? value : JSON.stringify(value);
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return text === "";
  }
}

/** Returns where an answer comes from: quoted, written by a model, or scripted. */
export function provenance(view: TurnView): string {
  const reason = view.mode === "fallback" ? failureReason(view) : undefined;
  return origin(view.mode, view.citations, modelOf(view), reason);
}

/** Returns the same from its facts. `reason` says why the model failed, where that may be shown. */
export function origin(
  mode: string | undefined,
  citations: readonly { index: number }[],
  model: string | undefined,
  reason?: string,
): string {
  const passages = new Set(citations.map((citation) => citation.index)).size;
  const from = passages ? ` from ${count(passages, "passage")}` : "";
  switch (mode) {
    case "extractive":
      return "Quoted word for word, no model";
    case "fallback":
      return `The model failed${reason ? ` (${reason})` : ""}; quoted instead`;
    case "greeting":
      return "A fixed reply; nothing was searched";
    case "not_found":
      return "Not found in the documents; the nearest passages are quoted";
    case "scripted":
      return "Scripted demo, no model";
    default:
      if (mode !== "synthesis" && mode !== "direct" && !model) return "";
      return `Written by ${model ?? "a model"}${from}`;
  }
}

/** Returns the model: from the response, or the last model call of an agent whose response names none. */
function modelOf({ memory, model }: TurnView): string | undefined {
  if (model) return model;
  const names = memory.log.slice(0, memory.count).map(({ event }) => (event.type === "usage" ? event.model : undefined));
  return names.findLast((name) => name !== undefined);
}

/** Returns why the model failed: from the response, or from the status line of an older log. */
function failureReason({ modelError, status = "" }: TurnView): string {
  const cause = (modelError ?? status).replace(/\s*These are the [^.]*\.$/, "").replace(/\.$/, "");
  return cause.replace(/^The model failed \((.*)\)$/, "$1") || "no reason was given";
}

/** Returns the heading path in a document, without the document's title. */
export function headingIn({ heading, title }: { heading?: string; title?: string }): string {
  const parts = (heading ?? "").split(/ [>›] /);
  return (parts[0] === title ? parts.slice(1) : parts).join(" › ");
}

const DAY = 86_400_000;

/** Returns the group of a time in the list of sessions. */
export function period(time: string, now = new Date()): string {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const at = new Date(time).getTime();
  if (at >= midnight) return "Today";
  if (at >= midnight - DAY) return "Yesterday";
  return at >= midnight - 6 * DAY ? "This week" : "Earlier";
}
