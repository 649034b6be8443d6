/** Many turns on one WebSocket. */

import type { Decision, StartOptions } from "./answers.js";
import { messageBody, uuid } from "./asking.js";
import type { TurnwireClient } from "./client.js";
import { TurnwireError } from "./errors.js";
import type { TurnEvent } from "./events.js";
import type { Http } from "./http.js";
import type { Control } from "./places.js";
import { SocketLine } from "./socket_line.js";
import { SocketReader } from "./socket_reader.js";
import { SocketTurn } from "./socket_turn.js";
import { pauseBefore } from "./waiting.js";

/** The errors after which the same words may be said again. A socket does not tell the status. */
const LATER = new Set(["shutting_down", "store_failed", "too_many_turns", "too_many_streams", "internal_error"]);

interface Accepted {
  turn_id: string;
  session_id: string;
  phase: string;
  last_position: number;
}

type Heard = { type: string; id?: number | null; turn_id?: string; error?: { code: string; message: string } };

/** Something that was said and is not answered yet. It is said again on the next socket; all of it may be said twice. */
interface Ask {
  message: object;
  attempt: number;
  done(accepted: Accepted): void;
  fail(error: unknown): void;
}

/** A turn that is followed, under the name that we were given for it. */
interface Channel {
  name: string;
  readers: Set<SocketReader>;
  /** Until this is answered, what comes is of an earlier following. */
  asking: number | undefined;
  /** When this is answered, and nothing has come before, there is nothing more to come. */
  ending: number | undefined;
}

export interface SocketOptions {
  /** For Node 20, which has none of its own. */
  WebSocket?: typeof WebSocket;
}

/** Opens with the first word, and again after a drop; every turn then goes on after the last event that came. */
export class TurnwireSocket {
  readonly #http: Http;
  readonly #line: SocketLine;
  readonly #asks = new Map<number, Ask>();
  readonly #channels = new Map<string, Channel>();
  /** By the server's own id of the turn. */
  readonly #byTurn = new Map<string, Channel>();
  #number = 0;

  constructor(client: TurnwireClient, options: SocketOptions = {}) {
    this.#http = client.http;
    const kind = options.WebSocket ?? globalThis.WebSocket;
    if (typeof kind !== "function") throw new TypeError("there is no WebSocket here: pass one as an option");
    const socket = this;
    this.#line = new SocketLine(client.http, kind, {
      get isNeeded() {
        return socket.#asks.size > 0 || socket.#channels.size > 0;
      },
      opened: () => this.#opened(),
      heard: (message) => this.#heard(message as Heard),
      refused: (error) => this.#failAsks(error),
      failed: (error) => this.#fail(error),
    });
  }

  /** Starts a turn; resolves when the server has taken it. Never asks twice. */
  start({ signal, idempotencyKey = uuid(), ...options }: StartOptions): Promise<SocketTurn> {
    const message = { type: "start", ...messageBody(options), idempotency_key: idempotencyKey };
    return this.#ask(message, signal, ({ turn_id: id, session_id: sessionId }) => {
      const reader = this.read(id, undefined, false);
      this.#byTurn.set(id, this.#channels.get(id)!);
      return new SocketTurn(this, id, sessionId, reader);
    });
  }

  /** A turn that is there already. */
  turn(turnId: string): SocketTurn {
    return new SocketTurn(this, turnId);
  }

  /** Resolves when it has stopped. */
  cancel(turnId: string): Promise<void> {
    return this.#ask({ type: "cancel", turn_id: turnId }, undefined, () => undefined);
  }

  decide(turnId: string, callId: string, decision: Decision): Promise<void> {
    return this.#ask({ type: "approve", turn_id: turnId, call_id: callId, ...decision }, undefined, () => undefined);
  }

  /** Whoever still reads or waits is told that it is closed. */
  close(): void {
    this.#line.close();
    this.#fail(new TurnwireError(0, "closed", "the socket was closed here", { retryable: false }));
  }

  /** A new reader of a turn; for `SocketTurn`. */
  read(turnId: string, after: number | string | undefined, follows = true): SocketReader {
    let channel = this.#channels.get(turnId);
    if (!channel) {
      channel = { name: turnId, readers: new Set(), asking: undefined, ending: undefined };
      this.#channels.set(turnId, channel);
    }
    const reader = new SocketReader(turnId, after);
    channel.readers.add(reader);
    if (follows) this.#follow(channel);
    return reader;
  }

  /** Asks again for what a reader did not keep. */
  again(turnId: string): void {
    const channel = this.#channels.get(turnId);
    if (channel) this.#follow(channel);
  }

  leave(turnId: string, reader: SocketReader): void {
    const channel = this.#channels.get(turnId);
    if (!channel?.readers.delete(reader) || channel.readers.size) return;
    this.#drop(channel);
    if (!reader.isWhole && this.#line.isOpen) this.#line.say({ type: "unfollow", turn_id: turnId });
  }

  #drop(channel: Channel): void {
    this.#channels.delete(channel.name);
    for (const [turnId, one] of this.#byTurn) if (one === channel) this.#byTurn.delete(turnId);
  }

  #ask<T>(message: object, signal: AbortSignal | undefined, made: (accepted: Accepted) => T): Promise<T> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const number = ++this.#number;
      const abort = (): void => {
        this.#asks.delete(number);
        reject(signal!.reason);
      };
      signal?.addEventListener("abort", abort);
      this.#asks.set(number, {
        message: { ...message, id: number },
        attempt: 0,
        // At once, and not when the promise is awaited: the next message may be the turn's first event.
        done: (accepted) => {
          signal?.removeEventListener("abort", abort);
          resolve(made(accepted));
        },
        fail: (error) => {
          signal?.removeEventListener("abort", abort);
          reject(error);
        },
      });
      this.#line.say({ ...message, id: number });
    });
  }

  /** From where the reader that is the least far is. */
  #follow(channel: Channel): void {
    const unfinished = [...channel.readers].filter((reader) => !reader.isWhole);
    if (!unfinished.length) return;
    const { place } = unfinished.reduce((least, one) => (one.place.position < least.place.position ? one : least));
    const epoch = place.lastId?.split(".")[1];
    const after = epoch ? { after: place.position, epoch: Number(epoch) } : { after: place.position };
    channel.asking = ++this.#number;
    channel.ending = undefined;
    this.#line.say({ type: "follow", id: channel.asking, turn_id: channel.name, ...after });
  }

  #opened(): void {
    for (const ask of this.#asks.values()) this.#line.say(ask.message);
    for (const channel of this.#channels.values()) this.#follow(channel);
  }

  #heard(heard: Heard): void {
    const channel = heard.turn_id === undefined ? undefined : this.#byTurn.get(heard.turn_id);
    switch (heard.type) {
      case "accepted":
        return this.#accepted(heard.id, heard as unknown as Accepted);
      case "error":
        return this.#refused(heard, channel);
      case "pong":
        for (const one of this.#channels.values()) {
          if (one.ending === heard.id) for (const reader of one.readers) reader.end();
        }
        return;
    }
    if (!channel || channel.asking !== undefined) return;
    channel.ending = undefined;
    if (heard.type === "event") {
      const { position, epoch, event } = heard as unknown as { position: number; epoch: number; event: TurnEvent };
      for (const reader of channel.readers) reader.take(`${position}.${epoch}`, event);
    } else if (heard.type === "gap" || heard.type === "reset") {
      for (const reader of channel.readers) reader.control(heard as unknown as Control);
    }
  }

  #accepted(number: number | null | undefined, accepted: Accepted): void {
    if (number === null || number === undefined) return;
    const ask = this.#asks.get(number);
    if (ask) {
      this.#asks.delete(number);
      return ask.done(accepted);
    }
    for (const channel of this.#channels.values()) {
      if (channel.asking !== number) continue;
      channel.asking = undefined;
      this.#byTurn.set(accepted.turn_id, channel);
      const positions = [...channel.readers].map((reader) => reader.place.position);
      if (accepted.phase === "ended" && Math.min(...positions) >= accepted.last_position) {
        // Either nothing comes, or it starts over: what is said before the answer to this tells which.
        channel.ending = ++this.#number;
        this.#line.say({ type: "ping", id: channel.ending });
      }
    }
  }

  #refused({ id, error = { code: "internal_error", message: "" } }: Heard, broken: Channel | undefined): void {
    const retryable = LATER.has(error.code);
    const failure = new TurnwireError(retryable ? 503 : 400, error.code, error.message);
    const ask = typeof id === "number" ? this.#asks.get(id) : undefined;
    if (typeof id === "number" && ask) {
      if (retryable && ++ask.attempt < this.#http.retry.attempts) {
        this.#later(ask.attempt, () => this.#asks.get(id) === ask && this.#line.say(ask.message));
      } else {
        this.#asks.delete(id);
        ask.fail(failure);
      }
      return;
    }
    for (const channel of this.#channels.values()) {
      if (channel !== broken && (typeof id !== "number" || channel.asking !== id)) continue;
      if (retryable) this.#later(3, () => this.#channels.get(channel.name) === channel && this.#follow(channel));
      else for (const reader of channel.readers) reader.fail(failure);
    }
  }

  #later(attempt: number, act: () => unknown): void {
    setTimeout(act, pauseBefore(attempt, this.#http.retry.first, this.#http.retry.most));
  }

  #failAsks(error: TurnwireError): void {
    const asks = [...this.#asks.values()];
    this.#asks.clear();
    for (const ask of asks) ask.fail(error);
  }

  #fail(error: TurnwireError): void {
    this.#failAsks(error);
    for (const channel of this.#channels.values()) for (const reader of channel.readers) reader.fail(error);
    this.#channels.clear();
    this.#byTurn.clear();
  }
}
