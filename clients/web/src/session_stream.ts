/**
 * The stream of a session, delivered in batches: at most one per frame, each within the frame's time.
 *
 * A hidden tab disconnects, and resumes when it is visible again.
 */

import type { Followed, LoggedEvent } from "../../js/src/index.ts";
import { isHidden, whileVisible } from "./visibility.ts";
import { client } from "./server.ts";

const FRAME_BUDGET_MS = 12;
/** Events within this time are rendered together, which halves the work and is not visible. */
const PACE_MS = 30;
const HIDDEN_PACE_MS = 250;

export interface Listener {
  /** Returns false to defer the item until `wake`. */
  take: (item: Followed) => boolean;
  /** Called after each batch. */
  drawn: () => void;
  /** The known events are void: the session must be loaded again. */
  reset: () => void;
  failed: (error: unknown) => void;
}

export class SessionStream {
  #queue: Followed[] = [];
  #isScheduled = false;
  #lastBatchAt = 0;
  #aborter: AbortController | null = null;
  readonly #unwatch: () => void;
  #isClosed = false;

  constructor(
    private readonly sessionId: string,
    private after: string | undefined,
    private readonly listener: Listener,
  ) {
    this.#unwatch = whileVisible(
      () => this.#disconnect(),
      () => void this.#follow(),
    );
    void this.#follow();
  }

  close(): void {
    this.#isClosed = true;
    this.#unwatch();
    this.#disconnect();
  }

  wake(): void {
    if (this.#isScheduled || this.#isClosed || !this.#queue.length) return;
    this.#isScheduled = true;
    // A hidden page has no frames, but its title and status line still change.
    if (isHidden()) return void setTimeout(this.#take, HIDDEN_PACE_MS);
    const wait = this.#lastBatchAt + PACE_MS - performance.now();
    if (wait > 1) setTimeout(() => requestAnimationFrame(this.#take), wait);
    else requestAnimationFrame(this.#take);
  }

  async #follow(): Promise<void> {
    if (this.#aborter || this.#isClosed) return;
    const aborter = (this.#aborter = new AbortController());
    const after = (this.#queue.findLast((item) => item.event) as LoggedEvent | undefined)?.id ?? this.after;
    try {
      for await (const item of client.followSession(this.sessionId, {
        signal: aborter.signal,
        ...(after ? { after } : {}),
      })) {
        if (aborter.signal.aborted) return;
        if (item.control === "reset") return this.listener.reset();
        this.#queue.push(item);
        this.wake();
      }
    } catch (error) {
      if (!aborter.signal.aborted) this.listener.failed(error);
    }
  }

  #take = (): void => {
    this.#isScheduled = false;
    if (this.#isClosed) return;
    this.#lastBatchAt = performance.now();
    let count = 0;
    let isBlocked = false;
    for (const item of this.#queue) {
      if (!this.listener.take(item)) {
        isBlocked = true;
        break;
      }
      if (item.event) this.after = item.id;
      count++;
      if (count % 64 === 0 && performance.now() > this.#lastBatchAt + FRAME_BUDGET_MS) break;
    }
    this.#queue.splice(0, count);
    if (count) this.listener.drawn();
    if (!isBlocked) this.wake();
  };

  #disconnect(): void {
    this.#aborter?.abort();
    this.#aborter = null;
  }
}
