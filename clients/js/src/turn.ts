/** A turn on the server, and how to follow, stop and decide about it. */

import type { Decision, Snapshot } from "./answers.js";
import type { Followed } from "./events.js";

export interface FollowOptions {
  /** The last position, or the last `id`, that you have; from the start without it. */
  after?: number | string;
  signal?: AbortSignal;
  /** Hears of `reset`, `gap` and `reconnect` as they come; the first two are also yielded. */
  onControl?: (control: { type: "gap" | "reset" | "reconnect"; [field: string]: unknown }) => void;
}

export interface TurnHandle {
  readonly id: string;
  /** Of a turn that was joined by its id alone it is known from its first event on. */
  readonly sessionId: string | undefined;
  /** The last position that any of its iterators has yielded. */
  readonly position: number;
  /**
   * Its events, from any position, until `done` has been yielded. A connection that is lost is opened again, and nothing
   * is yielded twice or left out. Throws TurnwireError when the server says no for good, and the signal's reason.
   */
  events(options?: FollowOptions): AsyncGenerator<Followed, void, undefined>;
  snapshot(): Promise<Snapshot>;
  /** Resolves when it has stopped. */
  cancel(): Promise<Snapshot>;
  decide(callId: string, decision: Decision): Promise<Snapshot>;
}
