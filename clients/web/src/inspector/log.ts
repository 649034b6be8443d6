/** The log of one turn with timestamps, read by long polling. */

import type { TurnEvent } from "../../../js/src/index.ts";
import { Observable } from "../observable.ts";
import { whileVisible } from "../visibility.ts";
import { client, isStatus, errorText } from "../server.ts";

export interface TimedEvent {
  position: number;
  epoch: number;
  /** Unix time in milliseconds. */
  at: number;
  event: TurnEvent;
}

interface Poll {
  events: TimedEvent[];
  after: number;
  done: boolean;
}

const WAIT_SECONDS = 25;
const RETRY_MS = 1500;

export class TurnLog extends Observable {
  events: TimedEvent[] = [];
  isDone = false;
  /** The reason why events cannot be shown. */
  problem: string | null = null;
  isUnreachable = false;
  /** True if the server knows no such turn of this user. */
  isMissing = false;
  #isVisible = true;
  #isReading = false;
  #polling: AbortController | null = null;

  constructor(readonly turnId: string) {
    super();
    whileVisible(
      () => {
        this.#isVisible = false;
        this.#polling?.abort();
      },
      () => {
        this.#isVisible = true;
        void this.#read();
      },
    );
    void this.#read();
  }

  /** Reads until the log ends or the tab is hidden; once at a time, or events would be doubled. */
  async #read(): Promise<void> {
    if (this.#isReading) return;
    this.#isReading = true;
    let wait = 0;
    while (this.#isVisible && !this.isDone && !this.problem) {
      try {
        const after = this.events.at(-1)?.position ?? 0;
        const polling = (this.#polling = new AbortController());
        const path = `/v1/turns/${encodeURIComponent(this.turnId)}/events?after=${after}&wait=${wait}`;
        const poll = await client.request<Poll>("GET", path, undefined, polling.signal);
        this.events = poll.events.length ? [...this.events, ...poll.events] : this.events;
        this.isDone = poll.done;
        this.isUnreachable = false;
        // Existing events are read in pages without waiting.
        wait = poll.events.length < 1000 ? WAIT_SECONDS : 0;
      } catch (error) {
        if (!this.#isVisible) break;
        if (isStatus(error, 409)) this.events = [];
        else if (isStatus(error, 404) || isStatus(error, 422)) {
          this.problem = "No turn has this id, or it belongs to somebody else.";
          this.isMissing = true;
        } else if (isStatus(error, 410)) this.problem = "The events of this turn have expired.";
        else if (isStatus(error, 401) || isStatus(error, 403)) this.problem = errorText(error);
        else {
          this.isUnreachable = true;
          this.changed();
          await new Promise((go) => setTimeout(go, RETRY_MS));
        }
      }
      this.changed();
    }
    this.#isReading = false;
  }
}
