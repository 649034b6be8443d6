/** Something that changes, and those who draw it. */

import { useEffect, useState } from "preact/hooks";

export class Observed {
  readonly #watchers = new Set<() => void>();

  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => void this.#watchers.delete(watcher);
  }

  protected changed(): void {
    for (const watcher of this.#watchers) watcher();
  }
}

/** Draws the component again whenever the thing changes. */
export function useObserved<Thing extends Observed>(thing: Thing): Thing {
  const [, draw] = useState(0);
  useEffect(() => thing.watch(() => draw((count) => count + 1)), [thing]);
  return thing;
}
