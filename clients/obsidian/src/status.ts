/** One line about what goes on. */

import type { StepView, TurnView } from "@turnwire/client";

export function statusOf(turn: TurnView): string {
  if (turn.phase === "ended") return "";
  if (turn.phase === "waiting") return "Waiting for your decision";
  const step = turn.steps.findLast((one) => one.state === "running");
  if (step) return stepText(step);
  const last = turn.steps.at(-1);
  if (turn.text && (!last || [...turn.text].length > last.answerOffset)) return "Writing the answer…";
  return turn.status ?? (turn.phase === "starting" ? "Waiting to begin…" : "Thinking…");
}

/** What a step does, or has done, in words. */
export function stepText(step: StepView): string {
  const told = (name: string): string => {
    const value = step.args?.[name];
    return typeof value === "string" ? value : "";
  };
  if (step.kind === "handoff") return `Handed over to ${step.name}`;
  if (step.kind === "review") return step.name === "approved" ? "The evidence is enough" : "Looking for more evidence";
  if (step.kind === "search") return `Searching for “${step.query ?? ""}”`;
  switch (step.name) {
    case "search_vault":
      return `Searching the vault for “${told("query")}”`;
    case "read_note":
      return `Reading ${told("path")}`;
    case "list_notes":
      return told("folder") ? `Listing the notes in ${told("folder")}` : "Listing the notes";
    case "create_note":
      return `Creating ${told("path")}`;
    case "append_to_note":
      return `Adding to ${told("path")}`;
    default:
      return step.progress ? `${step.name}: ${step.progress}` : `Using ${step.name}`;
  }
}
