/** Which turns are shown, where editing and asking again have made more than one way through a conversation. */

import type { Entry } from "./entries.ts";

/** From the first turn on, each time the one that was chosen, or else the newest. */
export function visiblePath(entries: readonly Entry[], chosen: ReadonlyMap<string, string>): Entry[] {
  const known = new Set(entries.flatMap((entry) => [entry.turnId, entry.key]));
  const children = new Map<string, Entry[]>();
  for (const entry of entries) {
    const parent = entry.parent && known.has(entry.parent) ? entry.parent : "";
    children.set(parent, [...(children.get(parent) ?? []), entry]);
  }
  const path: Entry[] = [];
  const met = new Set<Entry>();
  for (let places = [""]; ;) {
    const among = places.flatMap((place) => children.get(place) ?? []);
    const picked = places.map((place) => chosen.get(place)).find((key) => key !== undefined);
    const next = among.find((entry) => entry.key === picked) ?? among.at(-1);
    if (!next || met.has(next)) return path;
    met.add(next);
    path.push(next);
    places = next.turnId && next.turnId !== next.key ? [next.turnId, next.key] : [next.key];
  }
}
