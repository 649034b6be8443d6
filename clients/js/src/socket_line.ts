/** One WebSocket that is there for as long as it is needed: opened, listened to, opened again. */

import { TurnwireError } from "./errors.js";
import { failureOf, type Http } from "./http.js";
import { onWake, rest } from "./waiting.js";

const KEY_REFUSED = 1008;
const TOO_LARGE = 1009;

/** Who talks on it. */
export interface Talk {
  /** Whether it should be opened again when it is lost. */
  readonly isNeeded: boolean;
  /** What was said before on another socket has to be said again. */
  opened(): void;
  heard(message: { type: string; [field: string]: unknown }): void;
  /** What was said last was too large to be taken. */
  refused(error: TurnwireError): void;
  /** It cannot be opened, and will not be. */
  failed(error: TurnwireError): void;
}

interface Ending {
  wasOpen: boolean;
  code: number;
  /** Milliseconds after which the server wants us back. */
  retryMs: number | undefined;
}

export class SocketLine {
  readonly #http: Http;
  readonly #kind: typeof WebSocket;
  readonly #talk: Talk;
  #socket: WebSocket | undefined;
  #running = false;
  #closing = new AbortController();

  constructor(http: Http, kind: typeof WebSocket, talk: Talk) {
    this.#http = http;
    this.#kind = kind;
    this.#talk = talk;
  }

  get isOpen(): boolean {
    return this.#socket?.readyState === 1;
  }

  /** Says something, if it is open; if it is not, that opens it, and `opened` will be called. */
  say(message: object): void {
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
      for (let attempt = 0; this.#talk.isNeeded && !signal.aborted; ) {
        const { wasOpen, code, retryMs } = await this.#live(signal);
        if (signal.aborted) return;
        attempt = wasOpen ? 1 : attempt + 1;
        if (code === KEY_REFUSED) throw new TurnwireError(401, "unauthorized", "the key is no longer valid");
        if (code === TOO_LARGE) this.#talk.refused(new TurnwireError(413, "body_too_large", "the message is too large"));
        if (!wasOpen) await this.#ask(signal);
        if (!this.#talk.isNeeded) return;
        if (retryMs !== undefined) await rest(retryMs, signal);
        else await this.#http.bear(this, failureOf("the socket is closed"), attempt, this.#http.retry.streamAttempts, signal);
      }
    } catch (error) {
      if (!signal.aborted) this.#talk.failed(failureOf(error));
    } finally {
      this.#running = false;
      this.#http.watch.forget(this);
    }
  }

  /** Why it cannot be opened is not told to scripts; a plain request is. Throws TurnwireError if it is for good. */
  async #ask(signal: AbortSignal): Promise<void> {
    try {
      await this.#http.json({ path: "/v1/budget", attempts: 1, signal });
    } catch (error) {
      signal.throwIfAborted();
      if (!failureOf(error).retryable) throw error;
    }
  }

  /** From its opening to its end. */
  #live(signal: AbortSignal): Promise<Ending> {
    const { heartbeat } = this.#http.retry;
    const key = this.#http.key;
    const socket = new this.#kind(this.#address(), key ? ["turnwire", `turnwire.key.${key}`] : ["turnwire"]);
    this.#socket = socket;
    return new Promise((resolve) => {
      const ending: Ending = { wasOpen: false, code: 0, retryMs: undefined };
      let since = 0;
      let timer: ReturnType<typeof setTimeout> | undefined;
      const stop = onWake(() => Date.now() - since > heartbeat * 1.2 && end());
      const alive = (): void => {
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
        // A dead connection answers no farewell, so nobody waits for one.
        socket.close();
        resolve(ending);
      };
      signal.addEventListener("abort", end);
      alive();
      socket.onopen = () => {
        alive();
        ending.wasOpen = true;
        this.#http.watch.forget(this);
        this.#http.watch.reached();
        this.#talk.opened();
      };
      socket.onmessage = ({ data }) => {
        alive();
        const message = JSON.parse(String(data)) as { type: string; retry_ms?: number };
        if (message.type === "reconnect") ending.retryMs = message.retry_ms ?? 0;
        else this.#talk.heard(message);
      };
      socket.onerror = () => {}; // It is closed next.
      socket.onclose = ({ code }) => {
        ending.code = code;
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
