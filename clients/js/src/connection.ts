/** Whether the server can be reached, as far as the streams and requests that are under way know. */

import { heed } from "./waiting.js";

export type ConnectionState = "online" | "connecting" | "offline";

export interface ConnectionDetail {
  /** How often in a row it has failed. */
  attempt: number;
  /** Milliseconds until the next try, while offline; absent if nothing tries. */
  retryIn?: number;
  error?: unknown;
}

export type ConnectionListener = (state: ConnectionState, detail: ConnectionDetail) => void;

/**
 * Many streams, one state: offline while any of them waits to try again, connecting while any of them tries again.
 * A first try is silent: a page should not say that it connects before anything went wrong.
 */
export class ConnectionWatch {
  state: ConnectionState = "online";
  readonly #listeners = new Set<ConnectionListener>();
  readonly #troubles = new Map<object, ConnectionState>();

  listen(listener: ConnectionListener): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  tell(who: object, state: "connecting" | "offline", detail: ConnectionDetail): void {
    this.#troubles.set(who, state);
    const now = this.#worst();
    if (now !== this.state || now === "offline") this.#announce(now, detail);
  }

  /** Somebody has given up; it stays so until somebody reaches the server. */
  missed(error: unknown): void {
    this.tell(this, "offline", { attempt: 1, error });
  }

  reached(): void {
    this.forget(this);
  }

  /** It is well, or has ended. */
  forget(who: object): void {
    this.#troubles.delete(who);
    const now = this.#worst();
    if (now !== this.state) this.#announce(now, { attempt: 0 });
  }

  #worst(): ConnectionState {
    const states = [...this.#troubles.values()];
    return states.includes("offline") ? "offline" : states.length ? "connecting" : "online";
  }

  #announce(now: ConnectionState, detail: ConnectionDetail): void {
    this.state = now;
    for (const listener of this.#listeners) heed(() => listener(now, detail));
  }
}
