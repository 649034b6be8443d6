/**
 * One session as this page sees it: what the server has told so far, and what was sent and is not yet told.
 *
 * Old turns come as snapshots, the last few and everything new from the session's one stream, so that what happens in
 * another tab or on another device is seen here too.
 */

import { type Followed, type Session, type TurnRecord, TurnwireError } from "../../js/src/index.ts";
import { visiblePath } from "./branches.ts";
import { type Entry, foldedEntry, foreignEntry, phaseOf, sentEntry, snapshotEntry } from "./entries.ts";
import { SessionStream } from "./following.ts";
import { Observed } from "./observed.ts";
import { client, isStatus, newId, told } from "./server.ts";

/** So many of the last turns are read from their logs, which tell more than snapshots do. */
const REPLAYED = 6;
const AGAIN_MS = 1_500;

export class Conversation extends Observed {
  session: Session | null = null;
  isLoading = false;
  /** Why it cannot be shown. */
  problem: string | null = null;
  /** What was chosen where there is more than one way to go on, by parent. */
  readonly #chosen = new Map<string, string>();
  #entries: Entry[] = [];
  #stream: SessionStream | null = null;
  #sending = 0;

  constructor(
    public sessionId: string | null,
    private readonly tell: {
      /** A session was made for the first message. */
      began: (sessionId: string) => void;
      /** A turn was taken or has ended: the list of sessions is another one. */
      moved: () => void;
      unauthorized: () => void;
    },
  ) {
    super();
    if (sessionId) void this.#load(sessionId);
  }

  close(): void {
    this.#stream?.close();
    this.#stream = null;
    this.sessionId = null;
  }

  /** The turns to show, from the first to the last. */
  get path(): Entry[] {
    return visiblePath(this.#entries, this.#chosen);
  }

  /** Those that stand where this one stands: edits and other answers. */
  siblings(entry: Entry): Entry[] {
    return this.#entries.filter((other) => other.parent === entry.parent);
  }

  choose(entry: Entry): void {
    this.#chosen.set(entry.parent ?? "", entry.key);
    this.changed();
  }

  /** The one that is being answered. */
  get running(): Entry | undefined {
    return this.#entries.find((entry) => entry.turnId && entry.phase === "running");
  }

  get isBusy(): boolean {
    return this.#entries.some((entry) => entry.phase !== "ended" && entry.phase !== "refused");
  }

  /** Asks; `after` says which turn it continues, `""` none, and without it the last one that is shown. */
  async send(message: string, agent: string | undefined, after?: string): Promise<void> {
    const shown = this.path.findLast((entry) => entry.phase !== "refused");
    const last = this.#entries.findLast((entry) => entry.turnId);
    const parent = after ?? shown?.turnId ?? undefined;
    const entry = sentEntry({
      key: newId(),
      parent: after === "" ? null : (parent ?? shown?.key ?? null),
      message,
      agent,
      // The session's last turn is what the server takes by itself, also if that is one we do not know of yet.
      sentParent: parent === last?.turnId ? undefined : parent,
    });
    this.problem = null;
    this.#entries = [...this.#entries.filter((other) => other.phase !== "refused"), entry];
    this.choose(entry);
    await this.#post(entry);
  }

  async resend(entry: Entry): Promise<void> {
    const again: Entry = { ...entry, phase: "sending", problem: null };
    this.#put(again);
    await this.#post(again);
  }

  /** Stops an answer; takes a message back that waits. */
  async stop(entry: Entry): Promise<void> {
    if (!entry.turnId) return this.#drop(entry);
    this.#put({ ...entry, isStopping: true });
    try {
      await client.cancel(entry.turnId);
      if (entry.phase === "queued") this.#drop(entry);
    } catch (error) {
      this.#fail(error);
      const now = this.#find(entry.key);
      if (now) this.#put({ ...now, isStopping: false });
    }
  }

  async #post(entry: Entry): Promise<void> {
    this.#sending++;
    try {
      const sessionId = this.sessionId ?? (await this.#begin());
      const record = await client.request<TurnRecord>("POST", `/v1/sessions/${sessionId}/turns`, {
        message: entry.message,
        turn_id: entry.key,
        on_busy: "enqueue",
        ...(entry.agent ? { agent: entry.agent } : {}),
        ...(entry.sentParent === undefined ? {} : { parent_turn_id: entry.sentParent }),
      });
      this.#took(entry, record);
    } catch (error) {
      if (isAway(error)) void this.#postLater(entry, error);
      else {
        this.#put({ ...entry, phase: "refused", problem: told(error) });
        this.#fail(error);
      }
    } finally {
      this.#sending--;
      this.#stream?.wake();
    }
  }

  /** Its key is the turn's id, so that a message which did arrive is not asked twice. */
  async #postLater(entry: Entry, error: unknown): Promise<void> {
    this.#put({ ...entry, problem: told(error) });
    await new Promise((go) => setTimeout(go, AGAIN_MS));
    if (this.#find(entry.key)) await this.#post(entry);
  }

  #took(entry: Entry, { turn_id: turnId, parent_turn_id: parent, phase }: TurnRecord): void {
    // Messages that were sent before this one had an id hang on its key.
    this.#entries = this.#entries.map((other) => (other.parent === entry.key ? { ...other, parent: turnId } : other));
    this.#put({ ...entry, turnId, parent, phase: phaseOf(phase), problem: null });
    this.#chosen.set(parent ?? "", entry.key);
    this.#advance();
    this.tell.moved();
  }

  async #begin(): Promise<string> {
    this.session = await client.sessions.create();
    this.sessionId = this.session.id;
    this.tell.began(this.session.id);
    this.#follow(this.session.id);
    return this.session.id;
  }

  async #load(sessionId: string): Promise<void> {
    this.isLoading = true;
    this.changed();
    try {
      const { turns, transcript: _, ...session } = await client.sessions.export(sessionId);
      if (this.sessionId !== sessionId) return;
      turns.sort((one, other) => (one.turn_id < other.turn_id ? -1 : 1));
      const firstOpen = turns.findIndex((turn) => turn.phase !== "ended");
      const cut = Math.max(0, Math.min(firstOpen < 0 ? turns.length : firstOpen, turns.length - REPLAYED));
      const before = turns[cut - 1];
      this.session = session;
      this.#entries = turns.map((turn, index) => snapshotEntry(turn, index >= cut));
      this.#advance();
      this.#chosen.clear();
      if (this.#entries.length) this.#lead(this.#entries.at(-1)!);
      this.#follow(sessionId, before && `${before.turn_id}:${before.last_position}`);
      this.problem = null;
    } catch (error) {
      this.#broke(error, "This conversation is not there, or not yours.");
      if (isAway(error)) setTimeout(() => this.sessionId === sessionId && this.#load(sessionId), AGAIN_MS);
    }
    this.isLoading = false;
    this.changed();
  }

  #follow(sessionId: string, after?: string): void {
    this.#stream?.close();
    this.#stream = new SessionStream(sessionId, after, {
      take: (item) => this.#take(item),
      drawn: () => {
        this.#advance();
        this.changed();
      },
      reset: () => void this.#load(sessionId),
      failed: (error) => this.#broke(error, "This conversation was deleted."),
    });
  }

  #take(item: Followed): boolean {
    const turnId = item.turnId;
    if (!turnId) return true;
    let index = this.#entries.findLastIndex((entry) => entry.turnId === turnId);
    if (index < 0) {
      // It may be the one that is just being sent: the answer to the POST will tell.
      if (this.#sending) return false;
      this.#adopt(turnId);
      index = this.#entries.length - 1;
    }
    this.#entries[index] = foldedEntry(this.#entries[index]!, item);
    if (item.event?.type === "done" || item.event?.type === "message") this.tell.moved();
    return true;
  }

  /** A turn that was started elsewhere. What it continues is asked for, and is the last one until that is known. */
  #adopt(turnId: string): void {
    const last = this.#entries.findLast((entry) => entry.turnId);
    this.#entries = [...this.#entries, foreignEntry(turnId, last?.turnId ?? null)];
    this.#lead(this.#entries.at(-1)!);
    client.snapshot(turnId).then(
      ({ parent_turn_id: parent }) => {
        const now = this.#find(turnId);
        if (!now || now.parent === parent) return;
        this.#put({ ...now, parent });
        this.#lead(this.#find(turnId)!);
      },
      () => {},
    );
  }

  /** Chooses the way that leads to a turn. */
  #lead(entry: Entry): void {
    for (let step: Entry | undefined = entry; step;) {
      const parent: string | null = step.parent;
      this.#chosen.set(parent ?? "", step.key);
      step = parent === null ? undefined : this.#entries.find((other) => other.turnId === parent);
    }
    this.changed();
  }

  /** The first that has not ended waits for nobody, though its agent may not have said anything yet. */
  #advance(): void {
    const first = this.#entries.find((entry) => entry.turnId && entry.phase !== "ended");
    if (first?.phase === "queued") this.#put({ ...first, phase: "running" });
  }

  #find(key: string): Entry | undefined {
    return this.#entries.find((entry) => entry.key === key);
  }

  #put(entry: Entry): void {
    this.#entries = this.#entries.map((other) => (other.key === entry.key ? entry : other));
    this.changed();
  }

  #drop(entry: Entry): void {
    this.#entries = this.#entries.filter((other) => other.key !== entry.key);
    this.changed();
  }

  #broke(error: unknown, ifGone: string): void {
    this.problem = told(error);
    if (isStatus(error, 404)) {
      // What is asked next begins another one.
      this.problem = ifGone;
      this.close();
      this.#entries = [];
    }
    this.#fail(error);
    this.changed();
  }

  #fail(error: unknown): void {
    if (isStatus(error, 401)) this.tell.unauthorized();
  }
}

/** Nobody answered, or one who is just leaving or not yet there. */
const isAway = (error: unknown): boolean =>
  error instanceof TurnwireError && (error.status === 0 || error.status === 503);
