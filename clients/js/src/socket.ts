/** Many turns on one WebSocket. */

import type { Handlers } from "./answers.js";
import type { Decision, Reply, Snapshot, StartOptions } from "./api_types.js";
import { messageBody, uuid } from "./message_body.js";
import type { TurnwireClient } from "./client.js";
import { TurnwireError } from "./errors.js";
import type { TurnEvent } from "./events.js";
import type { Http } from "./http.js";
import type { Control } from "./cursors.js";
import { SocketConnection } from "./socket_connection.js";
import { SocketReader } from "./socket_reader.js";
import { SocketTurn } from "./socket_turn.js";
import { backoff } from "./retry.js";
import { turnPath } from "./turn.js";

/** The error codes after which a request is sent again: a socket has no HTTP status. */
const RETRYABLE_CODES = new Set([
  "shutting_down",
  "store_away",
  "store_failed",
  "too_many_turns",
  "too_many_streams",
  "internal_error",
]);

interface Accepted {
  turn_id: string;
  session_id: string;
  phase: string;
  last_position: number;
}

type ServerMessage = { type: string; id?: number | null; turn_id?: string; error?: { code: string; message: string } };

/** A request without a response. It is sent again on the next socket; every request is safe to repeat. */
interface PendingRequest {
  message: object;
  attempt: number;
  done(accepted: Accepted): void;
  fail(error: unknown): void;
}

/** A followed turn, by the id that the caller used. */
interface Channel {
  name: string;
  readers: Set<SocketReader>;
  /** The id of an unanswered follow request; until its response, events belong to an earlier one. */
  followId: number | undefined;
  /** The id of a ping; if nothing comes before its pong, the turn has no more events. */
  pingId: number | undefined;
}

export interface SocketOptions {
  /** Required on Node 20, which has no WebSocket. */
  WebSocket?: typeof WebSocket;
}

/** A socket that opens with the first request, and again after a drop; every turn then resumes after its last event. */
export class TurnwireSocket {
  readonly #http: Http;
  readonly #connection: SocketConnection;
  readonly #requests = new Map<number, PendingRequest>();
  readonly #channels = new Map<string, Channel>();
  /** The channels by the server's turn id. */
  readonly #byTurn = new Map<string, Channel>();
  #number = 0;

  constructor(client: TurnwireClient, options: SocketOptions = {}) {
    this.#http = client.http;
    const WebSocketClass = options.WebSocket ?? globalThis.WebSocket;
    if (typeof WebSocketClass !== "function") throw new TypeError("WebSocket is missing: pass the option `WebSocket`");
    const socket = this;
    this.#connection = new SocketConnection(client.http, WebSocketClass, {
      get isNeeded() {
        return socket.#requests.size > 0 || socket.#channels.size > 0;
      },
      opened: () => this.#opened(),
      received: (message) => this.#receive(message as ServerMessage),
      refused: (error) => this.#failRequests(error),
      failed: (error) => this.#fail(error),
    });
  }

  /** Starts a turn; resolves when the server has accepted it. A retry never starts a second turn. */
  start({ signal, idempotencyKey = uuid(), ...options }: StartOptions): Promise<SocketTurn> {
    const message = { type: "start", ...messageBody(options), idempotency_key: idempotencyKey };
    return this.#request(message, signal, ({ turn_id: id, session_id: sessionId }) => {
      const reader = this.read(id, undefined, false);
      this.#byTurn.set(id, this.#channels.get(id)!);
      return new SocketTurn(this, id, sessionId, reader, options);
    });
  }

  /** Returns a handle for an existing turn; its handlers are called for what is still open. */
  turn(turnId: string, handlers: Handlers = {}): SocketTurn {
    return new SocketTurn(this, turnId, undefined, undefined, handlers);
  }

  /** Resolves when the turn has stopped. */
  cancel(turnId: string): Promise<void> {
    return this.#request({ type: "cancel", turn_id: turnId }, undefined, () => undefined);
  }

  decide(turnId: string, callId: string, decision: Decision): Promise<void> {
    return this.#request({ type: "approve", turn_id: turnId, call_id: callId, ...decision }, undefined, () => undefined);
  }

  /** Answers a question that a turn waits for. */
  reply(turnId: string, questionId: string, reply: Reply): Promise<void> {
    return this.#request({ type: "reply", turn_id: turnId, question_id: questionId, ...reply }, undefined, () => undefined);
  }

  /** Sends the result of one of your own tools. */
  sendToolResult(turnId: string, callId: string, output: unknown, isError = false): Promise<void> {
    const message = { type: "tool_result", turn_id: turnId, call_id: callId, output, is_error: isError };
    return this.#request(message, undefined, () => undefined);
  }

  /** Returns the state of a turn, over HTTP. */
  snapshot(turnId: string): Promise<Snapshot> {
    return this.#http.json({ path: turnPath(turnId) });
  }

  /** Closes the socket; pending requests and readers fail with `closed`. */
  close(): void {
    this.#connection.close();
    this.#fail(new TurnwireError(0, "closed", "the socket was closed by this client", { retryable: false }));
  }

  /** How long a turn may be unread, in milliseconds; for `SocketTurn`. */
  get heartbeat(): number {
    return this.#http.retry.heartbeat;
  }

  /** Adds a reader of a turn; for `SocketTurn`. */
  read(turnId: string, after: number | string | undefined, follows = true): SocketReader {
    let channel = this.#channels.get(turnId);
    if (!channel) {
      channel = { name: turnId, readers: new Set(), followId: undefined, pingId: undefined };
      this.#channels.set(turnId, channel);
    }
    const reader = new SocketReader(turnId, after);
    channel.readers.add(reader);
    if (follows) this.#follow(channel);
    return reader;
  }

  /** Follows the turn again, for events that a reader dropped. */
  again(turnId: string): void {
    const channel = this.#channels.get(turnId);
    if (channel) this.#follow(channel);
  }

  leave(turnId: string, reader: SocketReader): void {
    const channel = this.#channels.get(turnId);
    if (!channel?.readers.delete(reader) || channel.readers.size) return;
    this.#drop(channel);
    if (!reader.isComplete && this.#connection.isOpen) this.#connection.send({ type: "unfollow", turn_id: turnId });
  }

  #drop(channel: Channel): void {
    this.#channels.delete(channel.name);
    for (const [turnId, followed] of this.#byTurn) if (followed === channel) this.#byTurn.delete(turnId);
  }

  #request<T>(message: object, signal: AbortSignal | undefined, build: (accepted: Accepted) => T): Promise<T> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const number = ++this.#number;
      const abort = (): void => {
        this.#requests.delete(number);
        reject(signal!.reason);
      };
      signal?.addEventListener("abort", abort);
      this.#requests.set(number, {
        message: { ...message, id: number },
        attempt: 0,
        // Not after the promise: the next message may be the turn's first event.
        done: (accepted) => {
          signal?.removeEventListener("abort", abort);
          resolve(build(accepted));
        },
        fail: (error) => {
          signal?.removeEventListener("abort", abort);
          reject(error);
        },
      });
      this.#connection.send({ ...message, id: number });
    });
  }

  /** Follows from the position of the slowest reader. */
  #follow(channel: Channel): void {
    const unfinished = [...channel.readers].filter((reader) => !reader.isComplete);
    if (!unfinished.length) return;
    const cursors = unfinished.map((reader) => reader.cursor);
    const cursor = cursors.reduce((slowest, other) => (other.position < slowest.position ? other : slowest));
    const epoch = cursor.lastId?.split(".")[1];
    const after = epoch ? { after: cursor.position, epoch: Number(epoch) } : { after: cursor.position };
    channel.followId = ++this.#number;
    channel.pingId = undefined;
    this.#connection.send({ type: "follow", id: channel.followId, turn_id: channel.name, ...after });
  }

  #opened(): void {
    for (const request of this.#requests.values()) this.#connection.send(request.message);
    for (const channel of this.#channels.values()) this.#follow(channel);
  }

  #receive(message: ServerMessage): void {
    const channel = message.turn_id === undefined ? undefined : this.#byTurn.get(message.turn_id);
    switch (message.type) {
      case "accepted":
        return this.#accepted(message.id, message as unknown as Accepted);
      case "error":
        return this.#refused(message, channel);
      case "pong":
        for (const { pingId, readers } of this.#channels.values()) {
          if (pingId === message.id) for (const reader of readers) reader.end();
        }
        return;
    }
    if (!channel || channel.followId !== undefined) return;
    channel.pingId = undefined;
    if (message.type === "event") {
      const { position, epoch, event } = message as unknown as { position: number; epoch: number; event: TurnEvent };
      for (const reader of channel.readers) reader.take(`${position}.${epoch}`, event);
    } else if (message.type === "gap" || message.type === "reset") {
      for (const reader of channel.readers) reader.control(message as unknown as Control);
    }
  }

  #accepted(number: number | null | undefined, accepted: Accepted): void {
    if (number === null || number === undefined) return;
    const request = this.#requests.get(number);
    if (request) {
      this.#requests.delete(number);
      return request.done(accepted);
    }
    for (const channel of this.#channels.values()) {
      if (channel.followId !== number) continue;
      channel.followId = undefined;
      this.#byTurn.set(accepted.turn_id, channel);
      const positions = [...channel.readers].map((reader) => reader.cursor.position);
      if (accepted.phase === "ended" && Math.min(...positions) >= accepted.last_position) {
        // Either nothing comes, or a reset: whatever precedes the pong tells which.
        channel.pingId = ++this.#number;
        this.#connection.send({ type: "ping", id: channel.pingId });
      }
    }
  }

  #refused({ id, error = { code: "internal_error", message: "" } }: ServerMessage, broken: Channel | undefined): void {
    const retryable = RETRYABLE_CODES.has(error.code);
    const failure = new TurnwireError(retryable ? 503 : 400, error.code, error.message);
    const request = typeof id === "number" ? this.#requests.get(id) : undefined;
    if (typeof id === "number" && request) {
      if (retryable && ++request.attempt < this.#http.retry.attempts) {
        const send = (): void => this.#connection.send(request.message);
        this.#retryLater(request.attempt, () => this.#requests.get(id) === request && send());
      } else {
        this.#requests.delete(id);
        request.fail(failure);
      }
      return;
    }
    for (const channel of this.#channels.values()) {
      if (channel !== broken && (typeof id !== "number" || channel.followId !== id)) continue;
      if (retryable) this.#retryLater(3, () => this.#channels.get(channel.name) === channel && this.#follow(channel));
      else for (const reader of channel.readers) reader.fail(failure);
    }
  }

  #retryLater(attempt: number, act: () => unknown): void {
    setTimeout(act, backoff(attempt, this.#http.retry.first, this.#http.retry.most));
  }

  #failRequests(error: TurnwireError): void {
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    for (const request of requests) request.fail(error);
  }

  #fail(error: TurnwireError): void {
    this.#failRequests(error);
    for (const channel of this.#channels.values()) for (const reader of channel.readers) reader.fail(error);
    this.#channels.clear();
    this.#byTurn.clear();
  }
}
