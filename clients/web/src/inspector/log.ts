/** The log of one turn with its times, read to its end and then followed. */

import type { TurnEvent } from "../../../js/src/index.ts";
import { Observed } from "../observed.ts";
import { whileSeen } from "../seen.ts";
import { client, isStatus, told } from "../server.ts";

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
const AGAIN_MS = 1500;

export class TurnLog extends Observed {
  events: TimedEvent[] = [];
  isDone = false;
  /** Why nothing, or no more, can be shown. */
  problem: string | null = null;
  isAway = false;
  #isSeen = true;
  #polling: AbortController | null = null;

  constructor(readonly turnId: string) {
    super();
    whileSeen(
      () => {
        this.#isSeen = false;
        this.#polling?.abort();
      },
      () => {
        if (this.#isSeen) return;
        this.#isSeen = true;
        void this.#read();
      },
    );
    void this.#read();
  }

  async #read(): Promise<void> {
    let wait = 0;
    while (this.#isSeen && !this.isDone && !this.problem) {
      try {
        const after = this.events.at(-1)?.position ?? 0;
        const polling = (this.#polling = new AbortController());
        const path = `/v1/turns/${encodeURIComponent(this.turnId)}/events?after=${after}&wait=${wait}`;
        const poll = await client.request<Poll>("GET", path, undefined, polling.signal);
        this.events = poll.events.length ? [...this.events, ...poll.events] : this.events;
        this.isDone = poll.done;
        this.isAway = false;
        // What has been written is read at once, in pages; only then is it waited for.
        wait = poll.events.length < 1000 ? WAIT_SECONDS : 0;
      } catch (error) {
        if (!this.#isSeen) return;
        if (isStatus(error, 409)) this.events = [];
        else if (isStatus(error, 404)) this.problem = "This turn is not there, or not yours.";
        else if (isStatus(error, 410)) this.problem = "The events of this turn are past their retention.";
        else if (isStatus(error, 401) || isStatus(error, 403)) this.problem = told(error);
        else {
          this.isAway = true;
          this.changed();
          await new Promise((go) => setTimeout(go, AGAIN_MS));
        }
      }
      this.changed();
    }
  }
}
