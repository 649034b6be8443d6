/** Which turns are shown, where editing and asking again have made more than one way through a conversation. */

import type { TurnView } from "../../js/src/index.ts";

export interface Entry {
  /** Chosen here before the server knows of it; the turn's own id if it was started elsewhere. */
  key: string;
  turnId: string | null;
  /** The id of the turn that it continues, or the key while that has no id yet. */
  parent: string | null;
  message: string;
  agent: string | undefined;
  /** What the server is told it continues; it takes the session's last one otherwise. */
  sentParent: string | undefined;
  phase: "sending" | "refused" | "queued" | "running" | "ended";
  view: TurnView;
  /** The same turn, read again from its start, until it has caught up with `view`. */
  replay: TurnView | null;
  isStopping: boolean;
  problem: string | null;
}

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
  for (let places = [""]; ; ) {
    const among = places.flatMap((place) => children.get(place) ?? []);
    const picked = places.map((place) => chosen.get(place)).find((key) => key !== undefined);
    const next = among.find((entry) => entry.key === picked) ?? among.at(-1);
    if (!next || met.has(next)) return path;
    met.add(next);
    path.push(next);
    places = next.turnId && next.turnId !== next.key ? [next.turnId, next.key] : [next.key];
  }
}
