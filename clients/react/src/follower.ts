/** A stream as an external store of React: followed while somebody subscribes, and resumed where it was left. */

import type { Followed } from "@turnwire/client";

export abstract class Follower<State> {
  #state: State;
  #after: string | undefined;
  #aborter: AbortController | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #listeners = new Set<() => void>();

  constructor(initial: State) {
    this.#state = initial;
  }

  /** Yields the items after the one with this id. */
  protected abstract open(after: string | undefined, signal: AbortSignal): AsyncIterable<Followed>;
  /** Returns the state after an item; the same object if nothing changed. */
  protected abstract reduce(state: State, item: Followed): State;
  /** Returns the state after the stream has failed for good. */
  protected abstract failed(state: State, error: Error): State;

  readonly get = (): State => this.#state;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    if (this.#listeners.size === 1) void this.#follow();
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size) return;
      this.#aborter?.abort();
      this.#aborter = undefined;
    };
  };

  protected set(state: State): void {
    if (state === this.#state) return;
    this.#state = state;
    // One render for all items of a chunk, which arrive in one task.
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      for (const listener of this.#listeners) listener();
    });
  }

  async #follow(): Promise<void> {
    const { signal } = (this.#aborter = new AbortController());
    try {
      for await (const item of this.open(this.#after, signal)) {
        if (signal.aborted) return;
        this.set(this.reduce(this.#state, item));
        if (item.control === "reset") this.#after = undefined;
        else if (item.event) this.#after = item.id;
      }
    } catch (error) {
      if (!signal.aborted) this.set(this.failed(this.#state, error instanceof Error ? error : new Error(String(error))));
    }
  }
}
