/**
 * One conversation of the server, followed while it is open. It renders nothing.
 *
 * Turns belong to the server: closing a conversation stops no turn, and opening it again shows what has happened since.
 */

import { applyEvent, type Decision, EMPTY_VIEW, type Followed, type TurnView, TurnwireError, viewOfSnapshot } from "@turnwire/client";

import type { Link } from "./link";

const TURNS_SHOWN = 40;

export interface ConversationListener {
  /** A turn is new or has changed; undefined means all turns. */
  changed(turnId: string | undefined): void;
  failed(error: unknown): void;
}

export class Conversation {
  readonly sessionId: string;
  readonly link: Link;
  readonly #turns = new Map<string, TurnView>();
  readonly #listener: ConversationListener;
  readonly #closed = new AbortController();
  #isFollowing = false;
  #opening: Promise<void> | undefined;

  constructor(link: Link, sessionId: string, listener: ConversationListener) {
    this.link = link;
    this.sessionId = sessionId;
    this.#listener = listener;
  }

  get turns(): TurnView[] {
    return [...this.#turns.values()];
  }

  turn(turnId: string): TurnView | undefined {
    return this.#turns.get(turnId);
  }

  /** The running turn, or the next one in the queue. */
  get running(): TurnView | undefined {
    return this.turns.find((turn) => turn.phase !== "ended");
  }

  /** Loads the turns and follows new ones. A session that does not exist yet is empty. */
  open(): Promise<void> {
    return (this.#opening = this.#load());
  }

  async #load(): Promise<void> {
    const { client } = this.link;
    let session;
    try {
      session = await client.sessions.get(this.sessionId, { limit: TURNS_SHOWN });
    } catch (error) {
      if (error instanceof TurnwireError && error.status === 404) return;
      throw error;
    }
    const snapshots = await Promise.all(session.turns.map((turn) => client.snapshot(turn.turn_id)));
    if (this.#closed.signal.aborted) return;
    for (const snapshot of snapshots) this.#turns.set(snapshot.turn_id, viewOfSnapshot(snapshot));
    this.#listener.changed(undefined);
    this.#follow();
  }

  async send(message: string, agent: string): Promise<void> {
    await this.#opening; // Its snapshots would replace newer views.
    const turnId = await this.link.start(this.sessionId, message, agent);
    if (this.#closed.signal.aborted) return;
    if (!this.#turns.has(turnId)) {
      this.#turns.set(turnId, { ...EMPTY_VIEW, turnId, message });
      this.#listener.changed(turnId);
    }
    this.#follow();
  }

  /** Resolves when the turn has stopped. */
  async stop(): Promise<void> {
    const turn = this.running;
    if (turn) await this.link.client.cancel(turn.turnId);
  }

  /** Sends a decision, which is valid only for the shown arguments. */
  async decide(turnId: string, callId: string, decision: Decision): Promise<void> {
    await this.link.client.decide(turnId, callId, decision);
  }

  close(): void {
    this.#closed.abort();
  }

  #follow(): void {
    if (this.#isFollowing) return;
    this.#isFollowing = true;
    const following = this.link.mode === "streaming" ? this.#stream() : this.#poll();
    following
      .catch((error: unknown) => {
        if (!this.#closed.signal.aborted) this.#listener.failed(error);
      })
      .finally(() => (this.#isFollowing = false));
  }

  /** Follows all turns in one stream, also those of other clients. */
  async #stream(): Promise<void> {
    const turns = this.turns.filter((turn) => turn.position > 0);
    const last = turns.find((turn) => turn.phase !== "ended") ?? turns.at(-1);
    const after = last && `${last.turnId}:${last.position}`;
    for await (const item of this.link.client.followSession(this.sessionId, { after, signal: this.#closed.signal })) {
      await this.#take(item);
    }
  }

  /** Polls one turn after the other, until none is running. */
  async #poll(): Promise<void> {
    for (let turn = this.running; turn !== undefined; turn = this.running) {
      for await (const item of this.link.poll(turn.turnId, turn.position, this.#closed.signal)) await this.#take(item);
      if (this.#closed.signal.aborted) return;
      if (this.turn(turn.turnId)?.phase !== "ended") await this.#refresh(turn.turnId);
    }
    // Not in `finally`, so that a turn that starts now is followed.
    this.#isFollowing = false;
  }

  async #take(item: Followed): Promise<void> {
    if (this.#closed.signal.aborted) return;
    const { turnId } = item;
    if (turnId === undefined) {
      this.#turns.clear();
      this.#listener.changed(undefined);
      return;
    }
    const before = this.#turns.get(turnId) ?? EMPTY_VIEW;
    const after = applyEvent(before, item);
    if (after === before) return;
    this.#turns.set(turnId, after.turnId ? after : { ...after, turnId });
    if (after.isStale) await this.#refresh(turnId);
    this.#listener.changed(turnId);
  }

  async #refresh(turnId: string): Promise<void> {
    this.#turns.set(turnId, viewOfSnapshot(await this.link.client.snapshot(turnId)));
    this.#listener.changed(turnId);
  }
}
