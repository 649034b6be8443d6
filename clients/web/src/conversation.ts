/**
 * One session on this page: the turns of the server, and messages that the server has not yet confirmed.
 *
 * Old turns come as snapshots; the last few and all new ones come from the session's stream, so turns of other tabs and
 * devices appear as well.
 */

import { type Attachment, type Followed, type Session, type TurnRecord, TurnwireError } from "../../js/src/index.ts";
import { isShown, visiblePath } from "./branches.ts";
import { type Entry, foldedEntry, type OnBusy, remoteEntry, phaseOf, runningEntry, sentEntry, snapshotEntry } from "./entries.ts";
import { SessionStream } from "./session_stream.ts";
import { Observable } from "./observable.ts";
import { client, isStatus, newId, errorText } from "./server.ts";
import { loadRenderer } from "./text/load.ts";

/** The number of last turns that are read from their logs, which have more details than snapshots. */
const REPLAYED = 6;
const RETRY_MS = 1_500;

export class Conversation extends Observable {
  session: Session | null = null;
  /** Whether there are links by which anybody can read the session. */
  isShared = false;
  isLoading = false;
  /** The reason why the session cannot be shown. */
  problem: string | null = null;
  /** The chosen branch, by parent. */
  readonly #chosen = new Map<string, string>();
  #entries: Entry[] = [];
  #stream: SessionStream | null = null;
  #sending = 0;
  #creating: Promise<string> | undefined;
  #isClosed = false;

  constructor(
    public sessionId: string | null,
    private readonly callbacks: {
      /** A session was created for the first message. */
      created: (sessionId: string) => void;
      /** A turn was accepted or has ended, which changes the list of sessions. */
      updated: () => void;
      unauthorized: () => void;
    },
  ) {
    super();
    if (sessionId) {
      void loadRenderer();
      void this.#load(sessionId);
    }
  }

  /** Leaves the conversation. Its unsent messages are still sent to it. */
  close(): void {
    this.#isClosed = true;
    this.#unfollow();
  }

  /** The visible turns, in order. */
  get path(): Entry[] {
    return visiblePath(this.#entries, this.#chosen);
  }

  /** Returns the versions of a turn: edits and other answers. */
  siblings(entry: Entry): Entry[] {
    return this.#entries.filter((other) => other.parent === entry.parent && isShown(other));
  }

  choose(entry: Entry): void {
    this.#chosen.set(entry.parent ?? "", entry.key);
    this.changed();
  }

  /** The agent of the last visible turn. */
  get lastAgent(): string | undefined {
    const last = this.path.at(-1);
    return last && (last.view.agent || last.agent);
  }

  /** The running turn. */
  get running(): Entry | undefined {
    return this.#entries.find((entry) => entry.turnId && entry.phase === "running");
  }

  get isBusy(): boolean {
    return this.#entries.some((entry) => entry.phase !== "ended" && entry.phase !== "refused");
  }

  /**
   * Sends a message; `after` is the turn to continue, `""` none. Default: the last visible turn.
   *
   * `onBusy` says what happens if a turn runs.
   */
  async send(
    message: string,
    agent: string | undefined,
    after?: string,
    onBusy: OnBusy = "enqueue",
    attachments: Attachment[] = [],
  ): Promise<void> {
    const shown = this.path.findLast((entry) => entry.phase !== "refused");
    const last = this.#entries.findLast((entry) => entry.turnId);
    const parent = after ?? shown?.turnId ?? undefined;
    const entry = sentEntry({
      key: newId(),
      parent: after === "" ? null : (parent ?? shown?.key ?? null),
      message,
      attachments,
      agent,
      onBusy,
      // The server defaults to the session's last turn, which may be one that this page does not know yet.
      sentParent: parent === last?.turnId ? undefined : parent,
    });
    void loadRenderer();
    this.problem = null;
    this.#entries = [...this.#entries.filter((other) => other.phase !== "refused"), entry];
    this.choose(entry);
    await this.#post(entry);
  }

  async resend(entry: Entry): Promise<void> {
    const retried: Entry = { ...entry, phase: "sending", problem: null };
    this.#put(retried);
    await this.#post(retried);
  }

  /** Makes a link by which anybody can read the session, and returns its address. */
  async share(): Promise<string> {
    const { url } = await client.sessions.share(this.sessionId!);
    this.isShared = true;
    this.changed();
    return new URL(url, location.href).href;
  }

  /** Revokes all links to the session. */
  async unshare(): Promise<void> {
    await client.sessions.unshare(this.sessionId!);
    this.isShared = false;
    this.changed();
  }

  /** Starts a turn that shares another one up to a position; it appears as another version of it. */
  async branch(entry: Entry, position: number): Promise<void> {
    this.#sending++;
    try {
      const fork = await client.turn(entry.turnId!).fork({ position });
      this.#entries = [...this.#entries, snapshotEntry(fork, true)];
      this.#choosePath(this.#entries.at(-1)!);
      this.callbacks.updated();
    } catch (error) {
      this.problem = errorText(error);
      this.#checkLogin(error);
      this.changed();
    } finally {
      this.#sending--;
      this.#stream?.wake();
    }
  }

  /** Stops an answer, or removes a queued message. */
  async stop(entry: Entry): Promise<void> {
    if (!entry.turnId) return this.#drop(entry);
    this.#put({ ...entry, isStopping: true });
    try {
      await client.cancel(entry.turnId);
    } catch (error) {
      this.problem = errorText(error);
      this.#checkLogin(error);
      this.#change(entry.key, { isStopping: false });
    }
  }

  async #post(entry: Entry): Promise<void> {
    this.#sending++;
    try {
      const sessionId = this.sessionId ?? (await (this.#creating ??= this.#createSession()));
      const record = await client.request<TurnRecord>("POST", `/v1/sessions/${sessionId}/turns`, {
        message: entry.message,
        turn_id: entry.key,
        on_busy: entry.onBusy,
        ...(entry.attachments.length ? { attachments: entry.attachments.map(asSent) } : {}),
        ...(entry.agent ? { agent: entry.agent } : {}),
        ...(entry.sentParent === undefined ? {} : { parent_turn_id: entry.sentParent }),
      });
      this.#accepted(entry, record);
    } catch (error) {
      if (isUnreachable(error)) void this.#postLater(entry.key, error);
      else {
        this.#change(entry.key, { phase: "refused", problem: errorText(error) });
        this.#checkLogin(error);
      }
    } finally {
      this.#sending--;
      this.#stream?.wake();
    }
  }

  /** Sends the message again. Its key is the turn id, so a message that did arrive starts no second turn. */
  async #postLater(key: string, error: unknown): Promise<void> {
    this.#change(key, { problem: errorText(error) });
    await new Promise((go) => setTimeout(go, RETRY_MS));
    const entry = this.#find(key);
    if (entry) await this.#post(entry);
  }

  #accepted(entry: Entry, { turn_id: turnId, parent_turn_id: parent, phase }: TurnRecord): void {
    // It was in the session when that was loaded.
    if (this.#entries.some((other) => other.turnId === turnId && other.key !== entry.key)) return this.#drop(entry);
    // Messages that were sent before this turn had an id refer to its key.
    this.#entries = this.#entries.map((other) => (other.parent === entry.key ? { ...other, parent: turnId } : other));
    this.#put({ ...entry, turnId, parent, phase: phaseOf(phase), problem: null });
    this.#chosen.set(parent ?? "", entry.key);
    this.#advance();
    this.callbacks.updated();
  }

  /** Creates the session of a new conversation, once for all its messages. */
  async #createSession(): Promise<string> {
    try {
      this.session = await client.sessions.create();
    } finally {
      this.#creating = undefined;
    }
    this.sessionId = this.session.id;
    if (!this.#isClosed) this.callbacks.created(this.session.id);
    this.#follow(this.session.id);
    return this.session.id;
  }

  async #load(sessionId: string): Promise<void> {
    this.isLoading = true;
    this.changed();
    try {
      const { turns, transcript: _, shared_at, ...session } = await client.sessions.export(sessionId);
      if (this.#isClosed) return;
      turns.sort((turn, other) => (turn.turn_id < other.turn_id ? -1 : 1));
      const firstOpen = turns.findIndex((turn) => turn.phase !== "ended");
      const cut = Math.max(0, Math.min(firstOpen < 0 ? turns.length : firstOpen, turns.length - REPLAYED));
      const before = turns[cut - 1];
      this.session = session;
      this.isShared = !!shared_at;
      const last = turns.at(-1)?.turn_id ?? null;
      const unsent = this.#entries.filter((entry) => !entry.turnId);
      this.#entries = [
        ...turns.map((turn, index) => snapshotEntry(turn, index >= cut)),
        ...unsent.map((entry) => (entry.sentParent === undefined ? { ...entry, parent: entry.parent ?? last } : entry)),
      ];
      this.#advance();
      this.#chosen.clear();
      if (this.#entries.length) this.#choosePath(this.#entries.at(-1)!);
      this.#follow(sessionId, before && `${before.turn_id}:${before.last_position}`);
      this.problem = null;
    } catch (error) {
      this.#showError(error, "Conversation not found, or you have no access.");
      if (isUnreachable(error)) setTimeout(() => !this.#isClosed && this.#load(sessionId), RETRY_MS);
    }
    this.isLoading = false;
    this.changed();
  }

  #unfollow(): void {
    this.#stream?.close();
    this.#stream = null;
  }

  #follow(sessionId: string, after?: string): void {
    this.#unfollow();
    if (this.#isClosed) return;
    this.#stream = new SessionStream(sessionId, after, {
      take: (item) => this.#take(item),
      drawn: () => {
        this.#advance();
        this.changed();
      },
      reset: () => void this.#load(sessionId),
      failed: (error) => this.#showError(error, "This conversation was deleted."),
    });
  }

  #take(item: Followed): boolean {
    const turnId = item.turnId;
    if (!turnId) return true;
    let index = this.#entries.findLastIndex((entry) => entry.turnId === turnId);
    if (index < 0) {
      // It may be the message that is being sent: the response of the POST will tell.
      if (this.#sending) return false;
      this.#addRemote(turnId);
      index = this.#entries.length - 1;
    }
    this.#entries[index] = foldedEntry(this.#entries[index]!, item);
    if (item.event?.type === "done" || item.event?.type === "message") this.callbacks.updated();
    return true;
  }

  /** Adds a turn that another client started. Its parent is the last turn until its snapshot arrives. */
  #addRemote(turnId: string): void {
    const last = this.#entries.findLast((entry) => entry.turnId);
    this.#entries = [...this.#entries, remoteEntry(turnId, last?.turnId ?? null)];
    this.#choosePath(this.#entries.at(-1)!);
    client.snapshot(turnId).then(
      ({ parent_turn_id: parent }) => {
        const now = this.#find(turnId);
        if (!now || now.parent === parent) return;
        this.#put({ ...now, parent });
        this.#choosePath(this.#find(turnId)!);
      },
      () => {},
    );
  }

  /** Chooses the branches that lead to a turn. */
  #choosePath(entry: Entry): void {
    for (let step: Entry | undefined = entry; step;) {
      const parent: string | null = step.parent;
      this.#chosen.set(parent ?? "", step.key);
      step = parent === null ? undefined : this.#entries.find((other) => other.turnId === parent);
    }
    this.changed();
  }

  /** Marks the first unfinished turn as running: no other turn is before it. */
  #advance(): void {
    const first = this.#entries.find((entry) => entry.turnId && entry.phase !== "ended");
    if (first?.phase === "queued" && !first.isStopping) this.#put(runningEntry(first));
  }

  #find(key: string): Entry | undefined {
    return this.#entries.find((entry) => entry.key === key);
  }

  #change(key: string, fields: Partial<Entry>): void {
    const entry = this.#find(key);
    if (entry) this.#put({ ...entry, ...fields });
  }

  #put(entry: Entry): void {
    this.#entries = this.#entries.map((other) => (other.key === entry.key ? entry : other));
    this.changed();
  }

  #drop(entry: Entry): void {
    this.#entries = this.#entries.filter((other) => other.key !== entry.key);
    this.changed();
  }

  #showError(error: unknown, ifGone: string): void {
    this.problem = errorText(error);
    if (isStatus(error, 404)) {
      // The next message starts a new session.
      this.problem = ifGone;
      this.#unfollow();
      this.sessionId = null;
      this.#entries = [];
    }
    this.#checkLogin(error);
    this.changed();
  }

  #checkLogin(error: unknown): void {
    if (isStatus(error, 401)) this.callbacks.unauthorized();
  }
}

/** Returns a file as a message names it: one that the session has, by its digest. */
const asSent = ({ media_type, name, data, url, digest }: Attachment): Attachment =>
  omitEmpty(digest ? { name, digest } : { media_type, name, data, url });

const omitEmpty = (fields: Record<string, string | undefined>): Attachment =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value));

/** Returns true if the server did not respond, is starting or is shutting down. */
const isUnreachable = (error: unknown): boolean =>
  error instanceof TurnwireError && (error.status === 0 || error.status === 503);
