/** The status line of a turn. */

import type { StepView, TurnView } from "@turnwire/client";

export function statusOf(turn: TurnView): string {
  if (turn.phase === "ended") return "";
  if (turn.approvals.length) return "Waiting for your decision";
  const question = turn.questions.find(({ state }) => state === "open");
  if (question) return `Answer on the server’s page: ${question.prompt}`;
  const step = turn.steps.findLast((item) => item.state === "running");
  if (step?.runsOn === "client") return `Waiting for ${step.name} of another program`;
  if (step) return stepText(step);
  const last = turn.steps.at(-1);
  if (turn.text && (!last || [...turn.text].length > last.answerOffset)) return "Writing the answer…";
  return turn.status ?? (turn.phase === "starting" ? "Waiting to begin…" : "Thinking…");
}

/** Returns the text of a step. */
export function stepText(step: StepView): string {
  const arg = (name: string): string => {
    const value = step.args?.[name];
    return typeof value === "string" ? value : "";
  };
  if (step.kind === "handoff") return `Handed over to ${step.name}`;
  if (step.kind === "review") return step.name === "approved" ? "The evidence is sufficient" : "Looking for more evidence";
  if (step.kind === "search") return `Searching for “${step.query ?? ""}”`;
  switch (step.name) {
    case "search_vault":
      return `Searching the vault for “${arg("query")}”`;
    case "read_note":
      return `Reading ${arg("path")}`;
    case "list_notes":
      return arg("folder") ? `Listing the notes in ${arg("folder")}` : "Listing the notes";
    case "create_note":
      return `Creating ${arg("path")}`;
    case "append_to_note":
      return `Adding to ${arg("path")}`;
    default:
      return step.progress ? `${step.name}: ${step.progress}` : `Using ${step.name}`;
  }
}
