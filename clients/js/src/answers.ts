/** Answers that this program gives by itself: results of its own tools, and replies to questions. */

import { TurnwireError } from "./errors.js";
import type { Arguments, Followed, QuestionEvent, ToolCallEvent } from "./events.js";
import type { Reply, Snapshot } from "./api_types.js";

/** The error codes of an answer that somebody else has given, or that nobody waits for any more. */
const TOO_LATE = new Set([
  "question_not_found",
  "reply_conflict",
  "tool_call_not_found",
  "turn_ended",
  "turn_not_found",
  "turn_not_waiting",
]);

/** A tool that this program runs. */
export interface ClientTool {
  name: string;
  description?: string;
  /** The JSON schema of the arguments, an object. */
  parameters?: { [keyword: string]: unknown };
  /** Returns the result, a JSON value. An error is told to the model. Without it, send the result yourself. */
  run?: (args: Arguments, call: ToolCallEvent) => unknown;
}

/** The handlers of what a turn waits for. They are called while the turn is followed. */
export interface Handlers {
  tools?: readonly ClientTool[];
  /** Returns the answer; `undefined` leaves the question open, and an error declines it. */
  onQuestion?: (question: QuestionEvent) => unknown;
}

/** The requests that answers are sent with. */
export interface AnswerSender {
  snapshot(turnId: string): Promise<Snapshot>;
  reply(turnId: string, questionId: string, reply: Reply): Promise<unknown>;
  sendToolResult(turnId: string, callId: string, output: unknown, isError?: boolean): Promise<unknown>;
}

/** Calls the handlers for what is open. A log that is read again has answered calls too, so the server is asked first. */
export class Answers {
  readonly #sender: AnswerSender;
  readonly #handlers: () => Handlers;
  readonly #taken = new Set<string>();

  constructor(sender: AnswerSender, handlers: () => Handlers) {
    this.#sender = sender;
    this.#handlers = handlers;
  }

  take({ event, turnId }: Followed): void {
    if (!event || !turnId) return;
    if (event.type === "tool_call" && event.runs_on === "client") this.#once(turnId, event.call_id, () => this.#run(turnId, event));
    else if (event.type === "question") this.#once(turnId, event.id, () => this.#ask(turnId, event));
  }

  #once(turnId: string, id: string, answer: () => Promise<unknown>): void {
    const key = `${turnId} ${id}`;
    if (this.#taken.has(key)) return;
    this.#taken.add(key);
    answer().catch((error: unknown) => {
      this.#taken.delete(key);
      if (error instanceof TurnwireError && TOO_LATE.has(error.code)) return;
      (globalThis.reportError ?? console.error)(error);
    });
  }

  async #run(turnId: string, call: ToolCallEvent): Promise<void> {
    const run = this.#handlers().tools?.find(({ name }) => name === call.tool)?.run;
    if (!run) return;
    const { phase, state } = await this.#sender.snapshot(turnId);
    const step = state.steps?.findLast(({ kind, id }) => kind === "tool" && id === call.call_id);
    if (phase === "ended" || (step?.state ?? "running") !== "running") return;
    let output: unknown;
    let isError = false;
    try {
      output = (await run(call.args, call)) ?? null;
      JSON.stringify(output); // Throws for a value that cannot be sent.
    } catch (error) {
      output = messageOf(error);
      isError = true;
    }
    await this.#sender.sendToolResult(turnId, call.call_id, output, isError);
  }

  async #ask(turnId: string, question: QuestionEvent): Promise<void> {
    const onQuestion = this.#handlers().onQuestion;
    if (!onQuestion) return;
    const { phase, state } = await this.#sender.snapshot(turnId);
    const asked = state.questions?.find(({ id }) => id === question.id);
    if (phase === "ended" || (asked?.state ?? "open") !== "open") return;
    let reply: Reply;
    try {
      const value = await onQuestion(question);
      if (value === undefined) return;
      reply = { value };
    } catch (error) {
      reply = { declined: true, reason: messageOf(error) };
    }
    await this.#sender.reply(turnId, question.id, reply);
  }
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
