/** When to try again: after a pause that grows, or at once when the machine or the page wakes up. */

export interface RetryOptions {
  /** Milliseconds before the first new try; doubled each time, with jitter. Default 250. */
  first?: number;
  /** The longest time between two tries. Default 10 000. */
  most?: number;
  /** How often a request is tried before its error is thrown. Default 5. */
  attempts?: number;
  /** How often in a row a stream is opened in vain before its error is thrown. Default: for ever. */
  streamAttempts?: number;
  /** Milliseconds between the server's heartbeats; a stream that is silent for 2.5 of them is opened again. Default 15 000. */
  heartbeat?: number;
}

export const RETRY: Required<RetryOptions> = {
  first: 250,
  most: 10_000,
  attempts: 5,
  streamAttempts: Infinity,
  heartbeat: 15_000,
};

/** Between half and the whole of a time that doubles, so that many clients do not come back at once. */
export function pauseBefore(attempt: number, first: number, most: number): number {
  return Math.min(most, first * 2 ** Math.min(attempt - 1, 30)) * (0.5 + Math.random() / 2);
}

/** Calls what an application gave us. What it throws is its own affair, and must not pass for a broken connection. */
export function heed(callback: () => void): void {
  try {
    callback();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** Calls back when the network is back or the page is looked at again. Returns how to stop. */
export function onWake(wake: () => void): () => void {
  const seen = () => globalThis.document.visibilityState === "visible" && wake();
  const hasEvents = typeof globalThis.addEventListener === "function";
  const hasPage = typeof globalThis.document?.addEventListener === "function";
  if (hasEvents) globalThis.addEventListener("online", wake);
  if (hasPage) globalThis.document.addEventListener("visibilitychange", seen);
  return () => {
    if (hasEvents) globalThis.removeEventListener("online", wake);
    if (hasPage) globalThis.document.removeEventListener("visibilitychange", seen);
  };
}

/** Rests, but not beyond a wake-up. Throws the signal's reason. */
export async function rest(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve) => {
    const timer = setTimeout(rested, ms);
    const stop = onWake(rested);
    signal?.addEventListener("abort", rested);
    function rested(): void {
      clearTimeout(timer);
      stop();
      signal?.removeEventListener("abort", rested);
      resolve();
    }
  });
  signal?.throwIfAborted();
}

/**
 * One connection's life: ended from outside, or by its own silence. Whoever makes one ends it with `cut`. One whose
 * heartbeat is Infinity may be silent for as long as it likes.
 *
 * Silence counts only while somebody waits for bytes: a reader that takes its time is not a dead server.
 */
export class Lifeline {
  readonly #abort = new AbortController();
  readonly #heartbeat: number;
  readonly #sleepless: () => void;
  #outer: AbortSignal | undefined;
  #since = Infinity;

  constructor(heartbeat: number, outer: AbortSignal | undefined) {
    this.#heartbeat = heartbeat;
    // Timers stand still while a machine sleeps; its clock does not.
    this.#sleepless = onWake(() => Date.now() - this.#since > heartbeat * 1.2 && this.#late());
    this.obey(outer);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Ends with this signal from now on, and with no other; with none it ends with no signal. */
  obey(outer: AbortSignal | undefined): void {
    this.#outer?.removeEventListener("abort", this.#follow);
    this.#outer = outer;
    if (outer?.aborted) this.#follow();
    else outer?.addEventListener("abort", this.#follow);
  }

  cut(reason?: unknown): void {
    this.#outer?.removeEventListener("abort", this.#follow);
    this.#sleepless();
    this.#abort.abort(reason);
  }

  /** Waits for something of the connection, and cuts it when that takes longer than a living one would. */
  async heard<T>(waiting: Promise<T>): Promise<T> {
    this.#since = Date.now();
    const timer = Number.isFinite(this.#heartbeat) ? setTimeout(this.#late, this.#heartbeat * 2.5) : undefined;
    try {
      return await waiting;
    } finally {
      clearTimeout(timer);
      this.#since = Infinity;
    }
  }

  readonly #late = (): void => this.cut(new Error("the connection is silent"));
  readonly #follow = (): void => this.cut(this.#outer?.reason);
}
