/** What went into a step and what came out of it, collected from the log. */

import type { TimedEvent } from "./log.ts";
import type { Step } from "./timing.ts";

/** A labelled value: text, or anything that JSON can show. */
export type Entry = [label: string, value: unknown];

export interface StepDetails {
  input: Entry[];
  output: Entry[];
}

export function detailsOf(step: Step, events: readonly TimedEvent[]): StepDetails {
  const within = events.filter(({ position }) => position >= step.first && position <= step.last);
  switch (step.kind) {
    case "tool":
    case "waiting":
      return callDetails(step, events);
    case "search":
      return searchDetails(step, within);
    case "review": {
      const review = within.find(({ event }) => event.type === "review")?.event;
      return { input: [], output: review ? [["Review", withoutFrame(review)]] : [] };
    }
    case "reasoning":
      return { input: [], output: texts(within, step.path, "reasoning", "Reasoning") };
    case "agent":
      return agentDetails(step, events, within);
    case "model":
      return modelDetails(step, events, within);
  }
}

function callDetails(step: Step, events: readonly TimedEvent[]): StepDetails {
  const input: Entry[] = [];
  const output: Entry[] = [];
  const progress: string[] = [];
  for (const { event, position } of events) {
    if (!("call_id" in event) || event.call_id !== step.id) continue;
    if (event.type === "tool_call" || event.type === "approval_request") {
      if (!input.length) input.push(["Arguments", event.args]);
      if (event.type === "approval_request" && event.reason) input.push(["Reason", event.reason]);
    } else if (event.type === "tool_progress" && event.text) progress.push(event.text);
    else if (event.type === "approval_response") {
      const by = event.by ? ` by ${event.by}` : "";
      output.push(["Decision", `${event.approved ? "allowed" : "denied"}${by}`]);
      if (event.reason) output.push(["Reason", event.reason]);
    } else if (event.type === "tool_result" && step.kind === "tool" && position >= step.first) {
      output.push([event.success ? "Result" : "Error", event.result ?? "(nothing)"]);
    }
  }
  if (progress.length && step.kind === "tool") output.unshift(["Progress", progress.join("\n")]);
  return { input, output };
}

function searchDetails(step: Step, within: readonly TimedEvent[]): StepDetails {
  const searches = within.map(({ event }) => event).filter((event) => event.type === "search");
  const own = searches.filter((event) => event.step_id === step.id);
  const end = own.find((event) => event.phase !== "started");
  const output: Entry[] = [];
  if (end?.phase === "failed") output.push(["Result", "The search failed."]);
  if (end?.hits) output.push(["Hits", end.hits.map(({ index, title, document_id, heading, score, text }) => ({
    index, title: title ?? document_id, heading, score, text,
  }))]);
  return { input: [["Query", step.name], ["Searched with", own[0]?.tool ?? ""]], output };
}

function agentDetails(step: Step, events: readonly TimedEvent[], within: readonly TimedEvent[]): StepDetails {
  const path = [...step.path, step.name];
  // The call that started the agent is the last one above it that was open then.
  const call = events.findLast(
    ({ event, position }) => event.type === "tool_call" && position < step.first && isPath(event.agent_path, step.path),
  )?.event;
  return {
    input: call?.type === "tool_call" ? [[`Arguments of ${call.tool}`, call.args]] : [],
    output: texts(within, path, "token", "Text"),
  };
}

function modelDetails(step: Step, events: readonly TimedEvent[], within: readonly TimedEvent[]): StepDetails {
  const own = (event: TimedEvent) => isPath(event.event.agent_path, step.path);
  const before = events.filter((event) => event.position < step.first && own(event));
  const previous = before.findLast(({ event }) => event.type === "usage")?.position ?? 0;
  const input: Entry[] = [];
  for (const { event, position } of before) {
    if (event.type === "message" && !previous) input.push(["Message", event.content]);
    if (event.type === "tool_result" && position > previous) input.push([`Result of ${event.tool}`, event.result ?? ""]);
    if (event.type === "search" && event.hits && position > previous) {
      input.push([`Hits of “${event.query}”`, event.hits.map(({ title, document_id }) => title ?? document_id)]);
    }
  }
  // Some agents log their tool calls after the usage of the model call that asked for them.
  const after = events.filter((event) => event.position > step.last && own(event));
  const end = after.findIndex(({ event }) => event.type !== "tool_call");
  const calls = [...within.filter(own), ...after.slice(0, end < 0 ? undefined : end)];
  return {
    input,
    output: [
      ...texts(within, step.path, "reasoning", "Reasoning"),
      ...texts(within, step.path, "token", "Text"),
      ...calls.flatMap(({ event }): Entry[] =>
        event.type === "tool_call" ? [[`Call of ${event.tool}`, event.args]] : [],
      ),
    ],
  };
}

/** Returns the joined pieces of one agent, if there are any. */
function texts(
  within: readonly TimedEvent[],
  path: readonly string[],
  type: "token" | "reasoning",
  label: string,
): Entry[] {
  const text = within
    .map(({ event }) => (event.type === type && isPath(event.agent_path, path) ? event.content : ""))
    .join("");
  return text ? [[label, text]] : [];
}

const isPath = (found: readonly string[] | undefined, path: readonly string[]): boolean =>
  (found ?? []).join("/") === path.join("/");

function withoutFrame(event: object): object {
  const { type: _, step_id: __, agent_path: ___, ...rest } = event as Record<string, unknown>;
  return rest;
}
