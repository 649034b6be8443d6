/** Cursors: the last event that a reader has, and the check that the next one follows it. */

import type { Followed, LoggedEvent, TurnEvent, TurnState } from "./events.js";

/** "old": the event was seen before; "missing": an event before it was not. */
export type TakeResult = LoggedEvent | "old" | "missing";

export interface Control {
  type: "gap" | "reset" | "reconnect";
  after?: number;
  first_kept?: number;
  state?: TurnState;
  retry_ms?: number;
}

export interface Cursor {
  /** The `Last-Event-ID`; undefined at the start. */
  readonly lastId: string | undefined;
  take(id: string, event: TurnEvent): TakeResult;
  /** Returns the item to yield for a control message; undefined if it does not change the log. */
  control(control: Control): Followed | undefined;
}

/** A cursor in one turn. Ids are `<position>.<epoch>`. */
export class TurnCursor implements Cursor {
  lastId: string | undefined;
  position = 0;
  readonly #turnId: string;

  constructor(turnId: string, after: number | string | undefined) {
    this.#turnId = turnId;
    if (after !== undefined && String(after) !== "0") {
      this.lastId = String(after);
      this.position = Number.parseInt(this.lastId, 10);
    }
  }

  take(id: string, event: TurnEvent): TakeResult {
    const [position = NaN, epoch] = id.split(".").map(Number);
    if (position <= this.position) return "old";
    if (position !== this.position + 1) return "missing";
    this.position = position;
    this.lastId = id;
    return { turnId: this.#turnId, position, epoch, id, event };
  }

  control({ type, after = 0, first_kept: firstKept = 1, state = {} }: Control): Followed | undefined {
    if (type === "reset") {
      this.position = 0;
      this.lastId = undefined;
      return { control: "reset", turnId: this.#turnId };
    }
    if (type !== "gap" || firstKept <= this.position + 1) return undefined;
    this.position = firstKept - 1;
    this.lastId = String(this.position);
    return { control: "gap", turnId: this.#turnId, after, firstKept, state };
  }
}

/** A cursor in a session, whose turns come one after the other. Ids are `<turn_id>:<position>`. */
export class SessionCursor implements Cursor {
  lastId: string | undefined;
  readonly #positions = new Map<string, number>();

  constructor(after: string | undefined) {
    this.lastId = after;
    if (after !== undefined) {
      const [turnId, position] = parseId(after);
      this.#positions.set(turnId, position);
    }
  }

  take(id: string, event: TurnEvent): TakeResult {
    const [turnId, position] = parseId(id);
    const last = this.#positions.get(turnId) ?? 0;
    if (position <= last) return "old";
    if (position !== last + 1) return "missing";
    this.#positions.set(turnId, position);
    this.lastId = id;
    return { turnId, position, id, event };
  }

  control({ type, after = 0, first_kept: firstKept = 1, state = {} }: Control): Followed | undefined {
    if (type === "reset") {
      this.#positions.clear();
      this.lastId = undefined;
      return { control: "reset" };
    }
    const turnId = state.turn_id;
    if (type !== "gap" || turnId === undefined || firstKept <= (this.#positions.get(turnId) ?? 0) + 1) return undefined;
    this.#positions.set(turnId, firstKept - 1);
    this.lastId = `${turnId}:${firstKept - 1}`;
    return { control: "gap", turnId, after, firstKept, state };
  }
}

function parseId(id: string): [string, number] {
  const colon = id.lastIndexOf(":");
  return [id.slice(0, colon), Number(id.slice(colon + 1))];
}
