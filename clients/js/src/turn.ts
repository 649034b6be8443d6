/** A turn on the server, and how to follow, stop and decide about it. */

import type { Decision, Snapshot } from "./answers.js";
import type { Followed } from "./events.js";
import { follow, leavable, type Opened } from "./follow.js";
import type { Http } from "./http.js";
import { type Control, TurnPlace } from "./places.js";

export interface FollowOptions {
  /** The last position, or the last `id`, that you have; from the start without it. */
  after?: number | string;
  signal?: AbortSignal;
  /** Hears of `reset`, `gap` and `reconnect` as they come; the first two are also yielded. */
  onControl?: (control: Control) => void;
}

export class TurnHandle {
  readonly id: string;
  readonly #http: Http;
  #sessionId: string | undefined;
  #position = 0;
  #opened: Opened | undefined;
  #unread: ReturnType<typeof setTimeout> | undefined;

  /** Made by `client.start` and `client.turn`; `opened` is the stream that came with the start. */
  constructor(http: Http, id: string, sessionId?: string, opened?: Opened) {
    this.#http = http;
    this.id = id;
    this.#sessionId = sessionId;
    this.#opened = opened;
    if (opened) {
      // What nobody reads is let go, because browsers have few connections to a server.
      this.#unread = setTimeout(() => this.#takeOpened()?.line.cut(), http.retry.heartbeat);
      (this.#unread as { unref?: () => void }).unref?.();
    }
  }

  /** Of a turn that was joined by its id alone it is known from its first event on. */
  get sessionId(): string | undefined {
    return this.#sessionId;
  }

  /** Of the event that was yielded last. */
  get position(): number {
    return this.#position;
  }

  /**
   * Its events, from any position, until `done` has been yielded. A connection that is lost is opened again, and nothing
   * is yielded twice or left out. Throws TurnwireError when the server says no for good, and the signal's reason.
   */
  events(options: FollowOptions = {}): AsyncGenerator<Followed, void, undefined> {
    return leavable(options.signal, (signal) => this.#follow({ ...options, signal }));
  }

  snapshot(): Promise<Snapshot> {
    return this.#http.json({ path: turnPath(this.id) });
  }

  /** Resolves when it has stopped, also if it had before. */
  cancel(): Promise<Snapshot> {
    return this.#http.json({ method: "POST", path: turnPath(this.id, "cancel") });
  }

  /** Allows or denies a tool call that it waits for. The same decision twice is one. */
  decide(callId: string, decision: Decision): Promise<Snapshot> {
    return this.#http.json({ method: "POST", path: turnPath(this.id, "approvals", callId), body: decision });
  }

  async *#follow({ after, signal, onControl }: FollowOptions): AsyncGenerator<Followed, void, undefined> {
    const place = new TurnPlace(this.id, after);
    const opened = place.position === 0 ? this.#takeOpened() : undefined;
    const path = turnPath(this.id, "events");
    for await (const item of follow(this.#http, { path, place, opened, endsWithDone: true, signal, onControl })) {
      this.#position = place.position;
      if (item.event?.type === "session") this.#sessionId = item.event.session_id;
      yield item;
    }
  }

  #takeOpened(): Opened | undefined {
    const opened = this.#opened;
    this.#opened = undefined;
    clearTimeout(this.#unread);
    return opened;
  }
}

export function turnPath(turnId: string, ...more: string[]): string {
  return ["/v1/turns", turnId, ...more].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");
}
