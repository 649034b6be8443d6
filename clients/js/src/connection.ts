/** The connection state, as reported by the current streams and requests. */

import { callSafely } from "./retry.js";

export type ConnectionState = "online" | "connecting" | "offline";

export interface ConnectionDetail {
  /** The number of failures in a row. */
  attempt: number;
  /** Milliseconds until the next attempt while offline; absent if there is none. */
  retryIn?: number;
  error?: unknown;
}

export type ConnectionListener = (state: ConnectionState, detail: ConnectionDetail) => void;

/**
 * One state for many streams: offline while any of them waits for a retry, connecting while any of them retries.
 * A first attempt is not reported: a page should not show "connecting" before anything has failed.
 */
export class ConnectionWatch {
  state: ConnectionState = "online";
  readonly #listeners = new Set<ConnectionListener>();
  readonly #states = new Map<object, ConnectionState>();

  listen(listener: ConnectionListener): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  report(owner: object, state: "connecting" | "offline", detail: ConnectionDetail): void {
    this.#states.set(owner, state);
    const now = this.#worst();
    if (now !== this.state || now === "offline") this.#notify(now, detail);
  }

  /** Reports that a request was given up; the state stays offline until the server is reached. */
  reportFailure(error: unknown): void {
    this.report(this, "offline", { attempt: 1, error });
  }

  reached(): void {
    this.forget(this);
  }

  /** Removes the state of a stream that is connected or has ended. */
  forget(owner: object): void {
    this.#states.delete(owner);
    const now = this.#worst();
    if (now !== this.state) this.#notify(now, { attempt: 0 });
  }

  #worst(): ConnectionState {
    const states = [...this.#states.values()];
    return states.includes("offline") ? "offline" : states.length ? "connecting" : "online";
  }

  #notify(now: ConnectionState, detail: ConnectionDetail): void {
    this.state = now;
    for (const listener of this.#listeners) callSafely(() => listener(now, detail));
  }
}
