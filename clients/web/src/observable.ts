/** Observable state, and the hook that renders it. */

import { useEffect, useState } from "preact/hooks";

export class Observable {
  readonly #watchers = new Set<() => void>();

  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => void this.#watchers.delete(watcher);
  }

  protected changed(): void {
    for (const watcher of this.#watchers) watcher();
  }
}

/** Renders the component again whenever the target changes. */
export function useObservable<Target extends Observable>(target: Target): Target {
  const [, draw] = useState(0);
  useEffect(() => target.watch(() => draw((count) => count + 1)), [target]);
  return target;
}
