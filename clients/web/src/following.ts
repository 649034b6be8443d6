/**
 * The stream of a session, given on in batches: at most one per frame, and none so big that a frame is missed.
 *
 * A tab that nobody sees lets go of it, and goes on where it was when it is looked at again.
 */

import type { Followed, LoggedEvent } from "../../js/src/index.ts";
import { isHidden, whileSeen } from "./seen.ts";
import { client } from "./server.ts";

const FRAME_BUDGET_MS = 12;
/** What comes within it is drawn together: nobody reads faster, and half the work is left out. */
const PACE_MS = 30;
const HIDDEN_PACE_MS = 250;

export interface Listener {
  /** False if it cannot be taken now; it is given again after `wake`. */
  take: (item: Followed) => boolean;
  /** A batch was taken. */
  drawn: () => void;
  /** What is known is not of this session's logs: all of it must be read anew. */
  reset: () => void;
  failed: (error: unknown) => void;
}

export class SessionStream {
  #arrived: Followed[] = [];
  #isScheduled = false;
  #takenAt = 0;
  #following: AbortController | null = null;
  readonly #unwatch: () => void;
  #isClosed = false;

  constructor(
    private readonly sessionId: string,
    private after: string | undefined,
    private readonly listener: Listener,
  ) {
    this.#unwatch = whileSeen(
      () => this.#leave(),
      () => void this.#follow(),
    );
    void this.#follow();
  }

  close(): void {
    this.#isClosed = true;
    this.#unwatch();
    this.#leave();
  }

  wake(): void {
    if (this.#isScheduled || this.#isClosed || !this.#arrived.length) return;
    this.#isScheduled = true;
    // A hidden page has no frames, but its title and its status line are still heard of.
    if (isHidden()) return void setTimeout(this.#take, HIDDEN_PACE_MS);
    const wait = this.#takenAt + PACE_MS - performance.now();
    if (wait > 1) setTimeout(() => requestAnimationFrame(this.#take), wait);
    else requestAnimationFrame(this.#take);
  }

  async #follow(): Promise<void> {
    if (this.#following || this.#isClosed) return;
    const following = (this.#following = new AbortController());
    const after = (this.#arrived.findLast((item) => item.event) as LoggedEvent | undefined)?.id ?? this.after;
    try {
      for await (const item of client.followSession(this.sessionId, {
        signal: following.signal,
        ...(after ? { after } : {}),
      })) {
        if (following.signal.aborted) return;
        if (item.control === "reset") return this.listener.reset();
        this.#arrived.push(item);
        this.wake();
      }
    } catch (error) {
      if (!following.signal.aborted) this.listener.failed(error);
    }
  }

  #take = (): void => {
    this.#isScheduled = false;
    if (this.#isClosed) return;
    this.#takenAt = performance.now();
    let count = 0;
    let isHeld = false;
    for (const item of this.#arrived) {
      if (!this.listener.take(item)) {
        isHeld = true;
        break;
      }
      if (item.event) this.after = item.id;
      count++;
      if (count % 64 === 0 && performance.now() > this.#takenAt + FRAME_BUDGET_MS) break;
    }
    this.#arrived.splice(0, count);
    if (count) this.listener.drawn();
    if (!isHeld) this.wake();
  };

  #leave(): void {
    this.#following?.abort();
    this.#following = null;
  }
}
