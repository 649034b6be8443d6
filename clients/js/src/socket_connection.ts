/** A WebSocket that is reopened while it is needed. */

import { TurnwireError } from "./errors.js";
import { failureOf, type Http } from "./http.js";
import { onWake, sleep } from "./retry.js";

const KEY_REFUSED = 1008;
const TOO_LARGE = 1009;

/** The callbacks of a connection. */
export interface SocketHandler {
  /** True if a lost socket must be opened again. */
  readonly isNeeded: boolean;
  /** A new socket is open: requests and subscriptions must be sent again. */
  opened(): void;
  received(message: { type: string; [field: string]: unknown }): void;
  /** The last message was too large. */
  refused(error: TurnwireError): void;
  /** The socket cannot be opened, and there is no retry. */
  failed(error: TurnwireError): void;
}

interface CloseInfo {
  wasOpen: boolean;
  code: number;
  /** Milliseconds until the reconnection that the server asked for. */
  retryMs: number | undefined;
}

export class SocketConnection {
  readonly #http: Http;
  readonly #WebSocketClass: typeof WebSocket;
  readonly #handler: SocketHandler;
  #socket: WebSocket | undefined;
  #running = false;
  #closing = new AbortController();

  constructor(http: Http, WebSocketClass: typeof WebSocket, handler: SocketHandler) {
    this.#http = http;
    this.#WebSocketClass = WebSocketClass;
    this.#handler = handler;
  }

  get isOpen(): boolean {
    return this.#socket?.readyState === 1;
  }

  /** Sends a message if the socket is open; otherwise opens it, and `opened` is called. */
  send(message: object): void {
    if (this.isOpen) this.#socket!.send(JSON.stringify(message));
    else if (!this.#running) void this.#run();
  }

  close(): void {
    this.#closing.abort();
    this.#socket?.close(1000);
  }

  async #run(): Promise<void> {
    const { signal } = (this.#closing = new AbortController());
    this.#running = true;
    try {
      for (let attempt = 0; this.#handler.isNeeded && !signal.aborted; ) {
        const { wasOpen, code, retryMs } = await this.#connect(signal);
        if (signal.aborted) return;
        attempt = wasOpen ? 1 : attempt + 1;
        if (code === KEY_REFUSED) throw new TurnwireError(401, "unauthorized", "the key is no longer valid");
        if (code === TOO_LARGE) this.#handler.refused(new TurnwireError(413, "body_too_large", "the message is too large"));
        if (!wasOpen) await this.#checkServer(signal);
        if (!this.#handler.isNeeded) return;
        if (retryMs !== undefined) await sleep(retryMs, signal);
        else {
          const closed = failureOf("the socket is closed");
          await this.#http.waitBeforeRetry(this, closed, attempt, this.#http.retry.streamAttempts, signal);
        }
      }
    } catch (error) {
      if (!signal.aborted) this.#handler.failed(failureOf(error));
    } finally {
      this.#running = false;
      this.#http.watch.forget(this);
      // A request that came between `close` and here has opened nothing.
      if (signal.aborted && this.#handler.isNeeded) void this.#run();
    }
  }

  /** Throws a final TurnwireError. Scripts cannot see why a socket does not open, so a plain request finds out. */
  async #checkServer(signal: AbortSignal): Promise<void> {
    try {
      await this.#http.json({ path: "/v1/budget", attempts: 1, signal });
    } catch (error) {
      signal.throwIfAborted();
      if (!failureOf(error).retryable) throw error;
    }
  }

  /** Opens a socket and resolves when it has closed. */
  #connect(signal: AbortSignal): Promise<CloseInfo> {
    const { heartbeat } = this.#http.retry;
    const key = this.#http.key;
    const socket = new this.#WebSocketClass(this.#address(), key ? ["turnwire", `turnwire.key.${key}`] : ["turnwire"]);
    this.#socket = socket;
    return new Promise((resolve) => {
      const closeInfo: CloseInfo = { wasOpen: false, code: 0, retryMs: undefined };
      let since = 0;
      let timer: ReturnType<typeof setTimeout> | undefined;
      const stop = onWake(() => Date.now() - since > heartbeat * 1.2 && end());
      const keepAlive = (): void => {
        since = Date.now();
        clearTimeout(timer);
        timer = setTimeout(end, heartbeat * 2.5);
      };
      const end = (): void => {
        clearTimeout(timer);
        stop();
        signal.removeEventListener("abort", end);
        socket.onopen = socket.onmessage = socket.onclose = null;
        this.#socket = undefined;
        // Not awaited, because a dead connection sends no close frame.
        socket.close();
        resolve(closeInfo);
      };
      signal.addEventListener("abort", end);
      keepAlive();
      socket.onopen = () => {
        keepAlive();
        closeInfo.wasOpen = true;
        this.#http.watch.forget(this);
        this.#http.watch.reached();
        this.#handler.opened();
      };
      socket.onmessage = ({ data }) => {
        keepAlive();
        const message = JSON.parse(String(data)) as { type: string; retry_ms?: number };
        if (message.type === "reconnect") closeInfo.retryMs = message.retry_ms ?? 0;
        else this.#handler.received(message);
      };
      socket.onerror = () => {}; // `onclose` follows.
      socket.onclose = ({ code }) => {
        closeInfo.code = code;
        end();
      };
    });
  }

  #address(): string {
    const base = typeof location === "undefined" ? undefined : location.href;
    const url = new URL(`${this.#http.url}/v1/ws`, base);
    url.protocol = url.protocol.replace("http", "ws");
    return url.href;
  }
}
