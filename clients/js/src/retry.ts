/** Retries: backoff, waking up early, and the timeout of a silent connection. */

export interface RetryOptions {
  /** Milliseconds before the first retry; doubled each time, with jitter. Default 250. */
  first?: number;
  /** The longest time between two attempts. Default 10 000. */
  most?: number;
  /** The attempts of a request before its error is thrown. Default 5. */
  attempts?: number;
  /** The failed attempts in a row to open a stream before its error is thrown. Default: unlimited. */
  streamAttempts?: number;
  /** Milliseconds between the server's heartbeats; a stream is reopened after a silence of 2.5 heartbeats. Default 15 000. */
  heartbeat?: number;
}

export const RETRY: Required<RetryOptions> = {
  first: 250,
  most: 10_000,
  attempts: 5,
  streamAttempts: Infinity,
  heartbeat: 15_000,
};

/** Returns an exponential backoff with jitter, so that many clients do not reconnect at once. */
export function backoff(attempt: number, first: number, most: number): number {
  return Math.min(most, first * 2 ** Math.min(attempt - 1, 30)) * (0.5 + Math.random() / 2);
}

/** Calls an application's callback. Its errors are reported as uncaught, and do not look like a lost connection. */
export function callSafely(callback: () => void): void {
  try {
    callback();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** Calls back when the network returns or the page becomes visible. Returns a function that stops it. */
export function onWake(wake: () => void): () => void {
  const onVisible = () => globalThis.document.visibilityState === "visible" && wake();
  const hasEvents = typeof globalThis.addEventListener === "function";
  const hasPage = typeof globalThis.document?.addEventListener === "function";
  if (hasEvents) globalThis.addEventListener("online", wake);
  if (hasPage) globalThis.document.addEventListener("visibilitychange", onVisible);
  return () => {
    if (hasEvents) globalThis.removeEventListener("online", wake);
    if (hasPage) globalThis.document.removeEventListener("visibilitychange", onVisible);
  };
}

/** Sleeps until the time is over or the page wakes up. Throws the signal's reason. */
export async function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve) => {
    const timer = setTimeout(finish, ms);
    const stop = onWake(finish);
    signal?.addEventListener("abort", finish);
    function finish(): void {
      clearTimeout(timer);
      stop();
      signal?.removeEventListener("abort", finish);
      resolve();
    }
  });
  signal?.throwIfAborted();
}

/**
 * The abort signal of one connection: aborted by the caller's signal, or by a silent server. The creator ends it with
 * `cut`. A heartbeat of Infinity has no timeout.
 *
 * Silence counts only while a reader waits for bytes, so a slow reader does not time out.
 */
export class ConnectionGuard {
  readonly #abort = new AbortController();
  readonly #heartbeat: number;
  readonly #stopWatching: () => void;
  #outer: AbortSignal | undefined;
  #waitingSince = Infinity;

  constructor(heartbeat: number, outer: AbortSignal | undefined) {
    this.#heartbeat = heartbeat;
    // Timers stop while a machine sleeps; its clock does not.
    this.#stopWatching = onWake(() => Date.now() - this.#waitingSince > heartbeat * 1.2 && this.#timeOut());
    this.linkSignal(outer);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Replaces the caller's signal; undefined removes it. */
  linkSignal(outer: AbortSignal | undefined): void {
    this.#outer?.removeEventListener("abort", this.#forwardAbort);
    this.#outer = outer;
    if (outer?.aborted) this.#forwardAbort();
    else outer?.addEventListener("abort", this.#forwardAbort);
  }

  cut(reason?: unknown): void {
    this.#outer?.removeEventListener("abort", this.#forwardAbort);
    this.#stopWatching();
    this.#abort.abort(reason);
  }

  /** Waits for data of the connection, and cuts it after 2.5 heartbeats. */
  async receive<T>(waiting: Promise<T>): Promise<T> {
    this.#waitingSince = Date.now();
    const timer = Number.isFinite(this.#heartbeat) ? setTimeout(this.#timeOut, this.#heartbeat * 2.5) : undefined;
    try {
      return await waiting;
    } finally {
      clearTimeout(timer);
      this.#waitingSince = Infinity;
    }
  }

  readonly #timeOut = (): void => this.cut(new Error("the connection is silent"));
  readonly #forwardAbort = (): void => this.cut(this.#outer?.reason);
}
