/**
 * One conversation as it is on the server, and kept up with while somebody looks at it. It draws nothing.
 *
 * Turns belong to the server: to close this ends the looking, never the turn, and who opens the same session again finds
 * what has happened meanwhile, and what still happens.
 */

import { applyEvent, type Decision, EMPTY_VIEW, type Followed, type TurnView, TurnwireError, viewOfSnapshot } from "@turnwire/client";

import type { Link } from "./link";

const TURNS_SHOWN = 40;

export interface ConversationListener {
  /** A turn is new or has changed; undefined: all of them have. */
  changed(turnId: string | undefined): void;
  failed(error: unknown): void;
}

export class Conversation {
  readonly sessionId: string;
  readonly link: Link;
  readonly #turns = new Map<string, TurnView>();
  readonly #listener: ConversationListener;
  readonly #left = new AbortController();
  #isFollowed = false;

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

  /** The turn that is answered now, or is the next to be. */
  get running(): TurnView | undefined {
    return this.turns.find((turn) => turn.phase !== "ended");
  }

  /** Fetches what was said, and follows what comes. A session that is not there yet is one where nothing was said. */
  async open(): Promise<void> {
    const { client } = this.link;
    let known;
    try {
      known = await client.sessions.get(this.sessionId, { limit: TURNS_SHOWN });
    } catch (error) {
      if (error instanceof TurnwireError && error.status === 404) return;
      throw error;
    }
    const snapshots = await Promise.all(known.turns.map((turn) => client.snapshot(turn.turn_id)));
    if (this.#left.signal.aborted) return;
    for (const snapshot of snapshots) this.#turns.set(snapshot.turn_id, viewOfSnapshot(snapshot));
    this.#listener.changed(undefined);
    this.#follow();
  }

  async send(message: string, agent: string): Promise<void> {
    const turnId = await this.link.start(this.sessionId, message, agent);
    if (this.#left.signal.aborted) return;
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

  /** The decision holds for the arguments that were shown, and for no others. */
  async decide(turnId: string, callId: string, decision: Decision): Promise<void> {
    await this.link.client.decide(turnId, callId, decision);
  }

  close(): void {
    this.#left.abort();
  }

  #follow(): void {
    if (this.#isFollowed) return;
    this.#isFollowed = true;
    const following = this.link.mode === "streaming" ? this.#stream() : this.#poll();
    following
      .catch((error: unknown) => {
        if (!this.#left.signal.aborted) this.#listener.failed(error);
      })
      .finally(() => (this.#isFollowed = false));
  }

  /** All turns in one stream, also those that are started elsewhere. */
  async #stream(): Promise<void> {
    const turns = this.turns.filter((turn) => turn.position > 0);
    const last = turns.find((turn) => turn.phase !== "ended") ?? turns.at(-1);
    const after = last && `${last.turnId}:${last.position}`;
    for await (const item of this.link.client.followSession(this.sessionId, { after, signal: this.#left.signal })) {
      await this.#take(item);
    }
  }

  /** One turn after the other, until there is none left. */
  async #poll(): Promise<void> {
    for (let turn = this.running; turn !== undefined; turn = this.running) {
      for await (const item of this.link.poll(turn.turnId, turn.position, this.#left.signal)) await this.#take(item);
      if (this.#left.signal.aborted) return;
      if (this.turn(turn.turnId)?.phase !== "ended") await this.#refresh(turn.turnId);
    }
    // At once, so that no turn can begin unseen.
    this.#isFollowed = false;
  }

  async #take(item: Followed): Promise<void> {
    if (this.#left.signal.aborted) return;
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
