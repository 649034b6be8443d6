/** A turn on a socket. */

import { Answers, type Handlers } from "./answers.js";
import type { Decision, Reply } from "./api_types.js";
import type { Control } from "./cursors.js";
import type { Followed, GapControl, ResetControl } from "./events.js";
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
  #unread: ReturnType<typeof setTimeout> | undefined;

  /** Created by `socket.start` and `socket.turn`; `first` reads the turn from its start. */
  constructor(socket: TurnwireSocket, id: string, sessionId?: string, first?: SocketReader, handlers: Handlers = {}) {
    this.#socket = socket;
    this.id = id;
    this.#sessionId = sessionId;
    this.#first = first;
    this.#answers = new Answers(socket, () => handlers);
    if (first) {
      // Nobody reads the turn: its events would be kept for as long as the socket is.
      this.#unread = setTimeout(() => socket.leave(id, this.#takeFirst()!), socket.heartbeat);
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
    const first = this.#takeFirst();
    const reader = first && after === undefined ? first : this.#socket.read(this.id, after);
    if (first && first !== reader) this.#socket.leave(this.id, first);
    try {
      for await (const item of reader.items(signal!, () => this.#socket.again(this.id))) {
        if (item.event) this.#position = item.position;
        else if (onControl) callSafely(() => onControl(controlOf(item)));
        if (item.event?.type === "session") this.#sessionId = item.event.session_id;
        this.#answers.take(item);
        yield item;
      }
    } finally {
      this.#socket.leave(this.id, reader);
    }
  }

  #takeFirst(): SocketReader | undefined {
    const first = this.#first;
    this.#first = undefined;
    clearTimeout(this.#unread);
    return first;
  }
}

/** Returns the message of the server that an item was made of. */
function controlOf(item: ResetControl | GapControl): Control {
  if (item.control === "reset") return { type: "reset" };
  return { type: "gap", after: item.after, first_kept: item.firstKept, state: item.state };
}
