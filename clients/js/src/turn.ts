/** A turn on the server: follow, stop and approve it. */

import { Answers, type Handlers } from "./answers.js";
import type { Decision, Feedback, ForkOptions, Reply, Snapshot } from "./api_types.js";
import type { Followed } from "./events.js";
import { follow, abortable, type OpenStream } from "./follow.js";
import type { Http } from "./http.js";
import { uuid } from "./message_body.js";
import { type Control, TurnCursor } from "./cursors.js";

export interface FollowOptions {
  /** The last position or `id` that you have. Default: the start. */
  after?: number | string;
  signal?: AbortSignal;
  /** Called with `reset`, `gap` and `reconnect`; the first two are also yielded. */
  onControl?: (control: Control) => void;
}

export class TurnHandle {
  readonly id: string;
  readonly #http: Http;
  #sessionId: string | undefined;
  #position = 0;
  #opened: OpenStream | undefined;
  readonly #answers: Answers;
  #unread: ReturnType<typeof setTimeout> | undefined;

  /** Created by `client.start` and `client.turn`; `opened` is the stream of the start. */
  constructor(http: Http, id: string, sessionId?: string, opened?: OpenStream, handlers: Handlers = {}) {
    this.#http = http;
    this.id = id;
    this.#sessionId = sessionId;
    this.#opened = opened;
    this.#answers = new Answers(answersOver(http), () => handlers);
    if (opened) {
      // An unread stream is closed, because browsers have few connections per server.
      this.#unread = setTimeout(() => this.#takeOpened()?.guard.cut(), http.retry.heartbeat);
      (this.#unread as { unref?: () => void }).unref?.();
    }
  }

  /** The session; for a turn joined by its id, it is known after the first event. */
  get sessionId(): string | undefined {
    return this.#sessionId;
  }

  /** The position of the last yielded event. */
  get position(): number {
    return this.#position;
  }

  /**
   * Yields the events from any position up to `done`. A lost connection is opened again, and every event is yielded
   * exactly once. Throws TurnwireError for a final error, and the signal's reason.
   */
  events(options: FollowOptions = {}): AsyncGenerator<Followed, void, undefined> {
    return abortable(options.signal, (signal) => this.#follow({ ...options, signal }));
  }

  snapshot(): Promise<Snapshot> {
    return this.#http.json({ path: turnPath(this.id) });
  }

  /** Resolves when the turn has stopped, also if it had ended before. */
  cancel(): Promise<Snapshot> {
    return this.#http.json({ method: "POST", path: turnPath(this.id, "cancel") });
  }

  /** Approves or denies a tool call that the turn waits for. Repeating a decision is safe. */
  decide(callId: string, decision: Decision): Promise<Snapshot> {
    return this.#http.json({ method: "POST", path: turnPath(this.id, "approvals", callId), body: decision });
  }

  /** Answers a question that the turn waits for. Repeating an answer is safe. */
  reply(questionId: string, reply: Reply): Promise<Snapshot> {
    return answersOver(this.#http).reply(this.id, questionId, reply);
  }

  /** Sends the result of one of your own tools. Repeating it is safe. */
  sendToolResult(callId: string, output: unknown, isError = false): Promise<Snapshot> {
    return answersOver(this.#http).sendToolResult(this.id, callId, output, isError);
  }

  /** Starts a turn that shares this one's log up to a position. A repeated request with one key forks once. */
  fork(options: ForkOptions, idempotencyKey = uuid()): Promise<Snapshot> {
    const headers = { "Idempotency-Key": idempotencyKey };
    return this.#http.json({ method: "POST", path: turnPath(this.id, "fork"), body: options, headers });
  }

  /** Rates the turn, with a note; `null` withdraws the rating. */
  async rate(value: "up" | "down" | null, note?: string): Promise<Feedback | null> {
    const path = turnPath(this.id, "feedback");
    const body = { value, note: note ?? null };
    return (await this.#http.json<{ feedback: Feedback | null }>({ method: "PUT", path, body })).feedback;
  }

  async *#follow({ after, signal, onControl }: FollowOptions): AsyncGenerator<Followed, void, undefined> {
    const cursor = new TurnCursor(this.id, after);
    const opened = cursor.position === 0 ? this.#takeOpened() : undefined;
    const path = turnPath(this.id, "events");
    for await (const item of follow(this.#http, { path, cursor, opened, endsWithDone: true, signal, onControl })) {
      this.#position = cursor.position;
      if (item.event?.type === "session") this.#sessionId = item.event.session_id;
      this.#answers.take(item);
      yield item;
    }
  }

  #takeOpened(): OpenStream | undefined {
    const opened = this.#opened;
    this.#opened = undefined;
    clearTimeout(this.#unread);
    return opened;
  }
}

/** Sends the answers that turns wait for. */
export function answersOver(http: Http) {
  return {
    snapshot: (turnId: string): Promise<Snapshot> => http.json({ path: turnPath(turnId) }),
    reply: (turnId: string, questionId: string, reply: Reply): Promise<Snapshot> =>
      http.json({ method: "POST", path: turnPath(turnId, "replies"), body: { question_id: questionId, ...reply } }),
    sendToolResult: (turnId: string, callId: string, output: unknown, isError = false): Promise<Snapshot> =>
      http.json({ method: "POST", path: turnPath(turnId, "tool-results"), body: { call_id: callId, output, is_error: isError } }),
  };
}

export function turnPath(turnId: string, ...more: string[]): string {
  return ["/v1/turns", turnId, ...more].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}
