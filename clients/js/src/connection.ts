/** Whether the server can be reached, as far as the streams that are open know. */

export type ConnectionState = "online" | "connecting" | "offline";

export interface ConnectionDetail {
  /** How often in a row it has failed. */
  attempt: number;
  /** Milliseconds until the next try, while offline. */
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

  /** `who` is a stream, or a request; "online" also when it has ended. */
  tell(who: object, state: ConnectionState, detail: ConnectionDetail): void {
    if (state === "online") this.#troubles.delete(who);
    else this.#troubles.set(who, state);
    const states = [...this.#troubles.values()];
    const now = states.includes("offline") ? "offline" : states.length ? "connecting" : "online";
    if (now === this.state && now !== "offline") return;
    this.state = now;
    for (const listener of this.#listeners) listener(now, detail);
  }
}
