/**
 * One session as this page sees it: what the server has told so far, and what was sent and is not yet told.
 *
 * Old turns come as snapshots, the last few and everything new from the session's one stream, so that what happens in
 * another tab or on another device is seen here too. Events are folded at most once per frame.
 */

import {
  applyEvent,
  EMPTY_VIEW,
  type Followed,
  type Session,
  type Snapshot,
  type TurnRecord,
  TurnwireError,
  type TurnView,
  viewOfSnapshot,
} from "../../js/src/index.ts";
import { type Entry, visiblePath } from "./branches.ts";
import { Observed } from "./observed.ts";
import { client, isStatus, newId, told } from "./server.ts";

/** So many of the last turns are read from their logs, which tell more than snapshots do. */
const REPLAYED = 6;
const FRAME_BUDGET_MS = 12;
const HIDDEN_MS = 60_000;
const AGAIN_MS = 1_500;

export class Conversation extends Observed {
  session: Session | null = null;
  isLoading = false;
  /** Why it cannot be shown. */
  problem: string | null = null;
  /** What was chosen where there is more than one answer, by parent. */
  readonly chosen = new Map<string, string>();
  #entries: Entry[] = [];
  #arrived: Followed[] = [];
  #isScheduled = false;
  #sending = 0;
  #lastId: string | undefined;
  #following: AbortController | null = null;
  #hiding: ReturnType<typeof setTimeout> | undefined;

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
    document.addEventListener("visibilitychange", this.#onVisibility);
    if (sessionId) void this.#load(sessionId);
  }

  close(): void {
    document.removeEventListener("visibilitychange", this.#onVisibility);
    clearTimeout(this.#hiding);
    this.#following?.abort();
    this.#following = null;
    this.sessionId = null;
  }

  get path(): Entry[] {
    return visiblePath(this.#entries, this.chosen);
  }

  /** Those that stand where this one stands: edits and other answers. */
  siblings(entry: Entry): Entry[] {
    return this.#entries.filter((other) => other.parent === entry.parent);
  }

  choose(entry: Entry): void {
    this.chosen.set(entry.parent ?? "", entry.key);
    this.changed();
  }

  /** The one that is being answered. */
  get running(): Entry | undefined {
    return this.#entries.find((entry) => entry.turnId && entry.phase !== "ended" && entry.phase !== "queued");
  }

  get isBusy(): boolean {
    return this.#entries.some((entry) => entry.phase !== "ended" && entry.phase !== "refused");
  }

  /** Asks; `after` says which turn it continues, `""` none, and without it the last one that is shown. */
  async send(message: string, agent: string | undefined, after?: string): Promise<void> {
    const last = this.path.findLast((entry) => entry.phase !== "refused");
    const parent = after ?? last?.turnId ?? undefined;
    const isBranch = parent !== undefined && parent !== (this.#entries.findLast((entry) => entry.turnId)?.turnId ?? "");
    const entry: Entry = {
      key: newId(),
      turnId: null,
      parent: after === "" ? null : (parent ?? last?.key ?? null),
      message,
      agent,
      sentParent: isBranch ? parent : undefined,
      phase: "sending",
      view: { ...EMPTY_VIEW, message },
      replay: null,
      isStopping: false,
      problem: null,
    };
    this.#entries = [...this.#entries.filter((other) => other.phase !== "refused"), entry];
    this.chosen.set(entry.parent ?? "", entry.key);
    this.changed();
    await this.#post(entry);
  }

  async resend(entry: Entry): Promise<void> {
    this.#put({ ...entry, phase: "sending", problem: null });
    await this.#post(this.#find(entry.key)!);
  }

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

  async rename(title: string): Promise<void> {
    if (this.sessionId) this.session = await client.sessions.rename(this.sessionId, title);
    this.changed();
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
      this.#put({ ...entry, turnId: record.turn_id, parent: record.parent_turn_id, phase: phaseOf(record.phase) });
      this.chosen.set(record.parent_turn_id ?? "", entry.key);
      this.#rehang(entry.key, record.turn_id);
      this.tell.moved();
    } catch (error) {
      if (isAway(error)) void this.#postLater(entry, error);
      else {
        this.#put({ ...entry, phase: "refused", problem: told(error) });
        this.#fail(error);
      }
    } finally {
      this.#sending--;
      this.#schedule();
    }
  }

  /** Its key is the turn's id, so that a message which did arrive is not asked twice. */
  async #postLater(entry: Entry, error: unknown): Promise<void> {
    this.#put({ ...entry, problem: told(error) });
    await new Promise((go) => setTimeout(go, AGAIN_MS));
    if (this.#find(entry.key)) await this.#post(entry);
  }

  async #begin(): Promise<string> {
    this.session = await client.sessions.create();
    this.sessionId = this.session.id;
    this.tell.began(this.session.id);
    void this.#follow();
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
      this.session = session;
      this.#entries = turns.map((turn, index) => entryOf(turn, index >= cut));
      this.chosen.clear();
      if (this.#entries.length) this.#show(this.#entries.at(-1)!);
      this.#lastId = cut ? `${turns[cut - 1]!.turn_id}:${turns[cut - 1]!.last_position}` : undefined;
      void this.#follow();
    } catch (error) {
      this.problem = isStatus(error, 404) ? "This conversation is not there, or not yours." : told(error);
      this.#fail(error);
    }
    this.isLoading = false;
    this.changed();
  }

  async #follow(): Promise<void> {
    const sessionId = this.sessionId;
    if (!sessionId || this.#following) return;
    const following = (this.#following = new AbortController());
    try {
      const options = { signal: following.signal, ...(this.#lastId ? { after: this.#lastId } : {}) };
      for await (const item of client.followSession(sessionId, options)) {
        if (following.signal.aborted) return;
        if (item.control === "reset") return void this.#reload(sessionId);
        this.#arrived.push(item);
        this.#schedule();
      }
    } catch (error) {
      if (following.signal.aborted) return;
      this.problem = isStatus(error, 404) ? "This conversation was deleted." : told(error);
      this.#fail(error);
      this.changed();
    }
  }

  #reload(sessionId: string): void {
    this.#following?.abort();
    this.#following = null;
    this.#arrived = [];
    void this.#load(sessionId);
  }

  #schedule(): void {
    if (this.#isScheduled || !this.#arrived.length) return;
    this.#isScheduled = true;
    // A hidden page has no frames, but its title and its status line are still heard of.
    if (document.hidden) setTimeout(this.#fold, 250);
    else requestAnimationFrame(this.#fold);
  }

  #fold = (): void => {
    this.#isScheduled = false;
    const until = performance.now() + FRAME_BUDGET_MS;
    const entries = new Map(this.#entries.map((entry) => [entry.turnId, entry]));
    let count = 0;
    for (const item of this.#arrived) {
      const turnId = item.turnId;
      if (turnId) {
        let entry = entries.get(turnId);
        if (!entry) {
          // It may be the one that is just being sent: the answer to the POST will tell.
          if (this.#sending) break;
          entry = this.#adopt(turnId);
        }
        entries.set(turnId, folded(entry, item));
        if (item.event?.type === "done" || item.event?.type === "message") this.tell.moved();
      }
      if (item.event) this.#lastId = item.id;
      count++;
      if (count % 64 === 0 && performance.now() > until) break;
    }
    this.#arrived.splice(0, count);
    this.#entries = this.#entries.map((entry) => entries.get(entry.turnId) ?? entry);
    if (count) this.changed();
    if (!this.#sending) this.#schedule();
  };

  /** A turn that was started elsewhere. What it continues is asked for, and is the last one until that is known. */
  #adopt(turnId: string): Entry {
    const last = this.#entries.findLast((entry) => entry.turnId);
    const entry: Entry = { ...EMPTY_ENTRY, key: turnId, turnId, parent: last?.turnId ?? null };
    this.#entries = [...this.#entries, entry];
    this.#show(entry);
    client.snapshot(turnId).then(
      (snapshot) => {
        const now = this.#find(turnId);
        if (!now || now.parent === snapshot.parent_turn_id) return;
        this.#put({ ...now, parent: snapshot.parent_turn_id });
        this.#show(this.#find(turnId)!);
      },
      () => {},
    );
    return entry;
  }

  /** Chooses the way that leads to a turn. */
  #show(entry: Entry): void {
    for (let step: Entry | undefined = entry; step; ) {
      const parent: string | null = step.parent;
      this.chosen.set(parent ?? "", step.key);
      step = parent === null ? undefined : this.#entries.find((other) => other.turnId === parent);
    }
    this.changed();
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

  /** Messages sent before this one had an id hang on its key. */
  #rehang(key: string, turnId: string): void {
    this.#entries = this.#entries.map((other) => (other.parent === key ? { ...other, parent: turnId } : other));
  }

  #fail(error: unknown): void {
    if (error instanceof TurnwireError && error.status === 401) this.tell.unauthorized();
  }

  /** A browser allows few connections to one server: a tab that nobody sees gives its own back, and goes on later. */
  #onVisibility = (): void => {
    clearTimeout(this.#hiding);
    if (!document.hidden) return void this.#follow();
    this.#hiding = setTimeout(() => {
      this.#following?.abort();
      this.#following = null;
    }, HIDDEN_MS);
  };
}

const EMPTY_ENTRY: Entry = {
  key: "",
  turnId: null,
  parent: null,
  message: "",
  agent: undefined,
  sentParent: undefined,
  phase: "running",
  view: EMPTY_VIEW,
  replay: null,
  isStopping: false,
  problem: null,
};

function entryOf(turn: Snapshot, isReplayed: boolean): Entry {
  return {
    ...EMPTY_ENTRY,
    key: turn.turn_id,
    turnId: turn.turn_id,
    parent: turn.parent_turn_id,
    message: turn.message,
    agent: turn.agent,
    phase: phaseOf(turn.phase),
    view: viewOfSnapshot(turn),
    replay: isReplayed ? EMPTY_VIEW : null,
  };
}

/** Nobody answered, or one who is just leaving or not yet there. */
const isAway = (error: unknown): boolean => error instanceof TurnwireError && (error.status === 0 || error.status === 503);

const phaseOf = (phase: TurnRecord["phase"]): Entry["phase"] => (phase === "waiting" ? "running" : phase);

/** A turn that is read again from its start is shown when it has come as far as what is shown already. */
function folded(entry: Entry, item: Followed): Entry {
  const replay: TurnView | null = entry.replay && applyEvent(entry.replay, item);
  const view = replay ? (replay.position >= entry.view.position ? replay : entry.view) : applyEvent(entry.view, item);
  const phase = view.outcome ? "ended" : view.position > 2 ? "running" : entry.phase;
  return { ...entry, view, replay: view === replay ? null : replay, message: view.message || entry.message, phase };
}
