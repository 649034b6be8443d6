/** The address of the inspector: which turn or list it shows, and with which filters. */

import { useEffect, useState } from "preact/hooks";
import { root } from "../server.ts";

const FILTERS = ["search", "status", "agent", "session"] as const;
export type FilterName = (typeof FILTERS)[number];

/** Returns the id of the turn in the address. */
export const turnIdOf = (path: string): string => decodeURIComponent(path.split("/").filter(Boolean).at(-1) ?? "");

/** Returns the filters of a query, which the page of a turn keeps for the way back and to its neighbours. */
export function filtersOf(query: string): URLSearchParams {
  const all = new URLSearchParams(query);
  return new URLSearchParams(FILTERS.flatMap((name) => (all.get(name) ? [[name, all.get(name)!]] : [])));
}

export function listAddress(query: URLSearchParams): string {
  return `${root}/turns${query.size ? `?${query}` : ""}`;
}

export function inspectAddress(turnId: string, query: URLSearchParams, compare?: string): string {
  const all = new URLSearchParams(query);
  if (compare) all.set("compare", compare);
  return `${root}/turns/${encodeURIComponent(turnId)}${all.size ? `?${all}` : ""}`;
}

/** Returns the query of the address, and a function that changes it and adds an entry to the history. */
export function useQuery(): [URLSearchParams, (changes: Record<string, string>) => void] {
  const [text, setText] = useState(location.search);
  useEffect(() => {
    const read = () => setText(location.search);
    addEventListener("popstate", read);
    return () => removeEventListener("popstate", read);
  }, []);
  const change = (changes: Record<string, string>) => {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value ? query.set(name, value) : query.delete(name);
    history.pushState(null, "", listAddress(query));
    setText(location.search);
  };
  return [new URLSearchParams(text), change];
}
