/** One iteration over a turn on a socket. */

import type { Followed, TurnEvent } from "./events.js";
import { type Control, TurnPlace } from "./places.js";

/** More than this is not kept for a reader that takes its time: it is asked for again. */
const MOST_QUEUED = 4_096;

export class SocketReader {
  readonly place: TurnPlace;
  /** Has everything up to `done`. */
  isWhole = false;
  /** Some of what was sent was not kept, or never came: it has to be asked for again. */
  isBehind = false;
  #queue: Followed[] = [];
  #error: unknown;
  #wake: (() => void) | undefined;

  constructor(turnId: string, after: number | string | undefined) {
    this.place = new TurnPlace(turnId, after);
  }

  take(id: string, event: TurnEvent): void {
    if (this.isWhole || this.isBehind) return;
    if (this.#queue.length >= MOST_QUEUED) this.isBehind = true;
    else {
      const placed = this.place.take(id, event);
      if (placed === "missing") this.isBehind = true;
      else if (placed !== "old") this.#put(placed);
    }
    if (this.isBehind) this.#wake?.();
  }

  control(control: Control): void {
    const item = this.place.control(control);
    if (item) this.#put(item);
  }

  /** There is nothing more to come. */
  end(): void {
    this.isWhole = true;
    this.#wake?.();
  }

  fail(error: unknown): void {
    this.#error = error;
    this.#wake?.();
  }

  /** What is there, as soon as there is something. `again` asks for what this reader did not keep. */
  async *items(signal: AbortSignal, again: () => void): AsyncGenerator<Followed, void, undefined> {
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
        if (this.isWhole) return;
        if (this.isBehind) {
          this.isBehind = false;
          again();
        }
        if (signal.aborted) continue;
        await new Promise<void>((resolve) => (this.#wake = resolve));
        this.#wake = undefined;
      }
    } finally {
      signal.removeEventListener("abort", wake);
    }
  }

  #put(item: Followed): void {
    this.#queue.push(item);
    if (item.event?.type === "done") this.isWhole = true;
    this.#wake?.();
  }
}
