/** A turn on a socket. */

import { Answers, type Handlers } from "./answers.js";
import type { Decision, Reply } from "./api_types.js";
import type { Followed } from "./events.js";
import { abortable } from "./follow.js";
import type { TurnwireSocket } from "./socket.js";
import type { SocketReader } from "./socket_reader.js";
import type { FollowOptions } from "./turn.js";
import { callSafely } from "./retry.js";

export class SocketTurn {
  readonly id: string;
  readonly #socket: TurnwireSocket;
  #sessionId: string | undefined;
  #position = 0;
  #first: SocketReader | undefined;
  readonly #answers: Answers;

  /** Created by `socket.start` and `socket.turn`; `first` reads the turn from its start. */
  constructor(socket: TurnwireSocket, id: string, sessionId?: string, first?: SocketReader, handlers: Handlers = {}) {
    this.#socket = socket;
    this.id = id;
    this.#sessionId = sessionId;
    this.#first = first;
    this.#answers = new Answers(socket, () => handlers);
  }

  /** The session; for a turn joined by its id, it is known after the first event. */
  get sessionId(): string | undefined {
    return this.#sessionId;
  }

  /** The position of the last yielded event. */
  get position(): number {
    return this.#position;
  }

  /** Yields the events, as `TurnHandle.events` does. */
  events(options: FollowOptions = {}): AsyncGenerator<Followed, void, undefined> {
    return abortable(options.signal, (signal) => this.#follow({ ...options, signal }));
  }

  cancel(): Promise<void> {
    return this.#socket.cancel(this.id);
  }

  decide(callId: string, decision: Decision): Promise<void> {
    return this.#socket.decide(this.id, callId, decision);
  }

  /** Answers a question that the turn waits for. */
  reply(questionId: string, reply: Reply): Promise<void> {
    return this.#socket.reply(this.id, questionId, reply);
  }

  /** Sends the result of one of your own tools. */
  sendToolResult(callId: string, output: unknown, isError = false): Promise<void> {
    return this.#socket.sendToolResult(this.id, callId, output, isError);
  }

  async *#follow({ after, signal, onControl }: FollowOptions): AsyncGenerator<Followed, void, undefined> {
    const first = this.#first;
    this.#first = undefined;
    const reader = first && after === undefined ? first : this.#socket.read(this.id, after);
    if (first && first !== reader) this.#socket.leave(this.id, first);
    try {
      for await (const item of reader.items(signal!, () => this.#socket.again(this.id))) {
        if (item.event) this.#position = item.position;
        else if (onControl) callSafely(() => onControl({ type: item.control }));
        if (item.event?.type === "session") this.#sessionId = item.event.session_id;
        this.#answers.take(item);
        yield item;
      }
    } finally {
      this.#socket.leave(this.id, reader);
    }
  }
}
