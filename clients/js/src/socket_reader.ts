/** One reader of a turn on a socket. */

import type { Followed, TurnEvent } from "./events.js";
import { type Control, TurnCursor } from "./cursors.js";

/** A slow reader drops further events and fetches them again. */
const MAX_QUEUED = 4_096;

export class SocketReader {
  readonly cursor: TurnCursor;
  /** True if the reader has all events up to `done`. */
  isComplete = false;
  /** True if events were dropped or are missing, and must be fetched again. */
  isBehind = false;
  #queue: Followed[] = [];
  #error: unknown;
  #wake: (() => void) | undefined;

  constructor(turnId: string, after: number | string | undefined) {
    this.cursor = new TurnCursor(turnId, after);
  }

  take(id: string, event: TurnEvent): void {
    if (this.isComplete || this.isBehind) return;
    if (this.#queue.length >= MAX_QUEUED) this.isBehind = true;
    else {
      const result = this.cursor.take(id, event);
      if (result === "missing") this.isBehind = true;
      else if (result !== "old") this.#enqueue(result);
    }
    if (this.isBehind) this.#wake?.();
  }

  control(control: Control): void {
    if (this.isComplete) return; // It is for another reader of the turn.
    const item = this.cursor.control(control);
    if (item) this.#enqueue(item);
  }

  /** Ends the reader: the log has no more events. */
  end(): void {
    this.isComplete = true;
    this.#wake?.();
  }

  fail(error: unknown): void {
    this.#error = error;
    this.#wake?.();
  }

  /** Yields items as they come. `refetch` requests dropped events again. */
  async *items(signal: AbortSignal, refetch: () => void): AsyncGenerator<Followed, void, undefined> {
    const wake = (): void => this.#wake?.();
    signal.addEventListener("abort", wake);
    try {
      for (;;) {
        signal.throwIfAborted();
        const items = this.#queue;
        this.#queue = [];
        yield* items;
        if (this.#queue.length) continue;
        if (this.#error !== undefined) throw this.#error;
        if (this.isComplete) return;
        if (this.isBehind) {
          this.isBehind = false;
          refetch();
        }
        if (signal.aborted) continue;
        await new Promise<void>((resolve) => (this.#wake = resolve));
        this.#wake = undefined;
      }
    } finally {
      signal.removeEventListener("abort", wake);
    }
  }

  #enqueue(item: Followed): void {
    this.#queue.push(item);
    if (item.event?.type === "done") this.isComplete = true;
    this.#wake?.();
  }
}
