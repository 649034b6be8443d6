/** The visible path through a conversation that has branches, made by edits and retries. */

import type { Entry } from "./entries.ts";

/** Returns false for a joined turn, whose message is shown in the turn that it has entered, and for a removed message. */
export const isShown = (entry: Entry): boolean => entry.view.outcome !== "joined" && !isRemoved(entry);

/** Returns true for a queued message that the user has stopped before its turn began; another message may stop it too. */
const isRemoved = ({ phase, startedAt, isStopping, view }: Entry): boolean =>
  startedAt === null && (view.outcome ? view.reason === "requested" : phase === "queued" && isStopping);

/** Returns the turns of the path: at each branch the chosen one, or the newest. */
export function visiblePath(entries: readonly Entry[], chosen: ReadonlyMap<string, string>): Entry[] {
  const ids = new Set(entries.flatMap((entry) => [entry.turnId, entry.key]));
  const children = new Map<string, Entry[]>();
  for (const entry of entries) {
    const parent = entry.parent && ids.has(entry.parent) ? entry.parent : "";
    children.set(parent, [...(children.get(parent) ?? []), entry]);
  }
  const path: Entry[] = [];
  const visited = new Set<Entry>();
  for (let parents = [""]; ;) {
    const candidates = parents.flatMap((id) => children.get(id) ?? []);
    const shown = candidates.filter(isShown);
    const choice = parents.map((id) => chosen.get(id)).find((key) => key !== undefined);
    const next = shown.find((entry) => entry.key === choice) ?? shown.at(-1) ?? candidates.at(-1);
    if (!next || visited.has(next)) return path;
    visited.add(next);
    if (isShown(next)) path.push(next);
    parents = next.turnId && next.turnId !== next.key ? [next.turnId, next.key] : [next.key];
  }
}
