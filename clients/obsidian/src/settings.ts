/** What the user has set, and which conversation belongs to which note. It is kept in the vault, so it holds no key. */

export interface TurnwireSettings {
  url: string;
  /** The name of the key in Obsidian's secret storage; the key itself is never here. */
  secret: string;
  /** Who is asked; empty is the server's default. */
  agent: string;
  scope: "note" | "vault";
  /** Whether the first question of a note's conversation names the note. */
  mentionNote: boolean;
  /** Sessions by the path of their note; "" is the vault's own. */
  sessions: Record<string, string>;
}

export const DEFAULT_SETTINGS: TurnwireSettings = {
  url: "http://127.0.0.1:8420",
  secret: "",
  agent: "",
  scope: "vault",
  mentionNote: true,
  sessions: {},
};

/** Settings from a file that anything may have written. */
export function readSettings(stored: unknown): TurnwireSettings {
  const told = (typeof stored === "object" && stored !== null ? stored : {}) as Partial<TurnwireSettings>;
  const sessions = Object.entries(told.sessions ?? {}).filter(([, id]) => typeof id === "string");
  return {
    url: typeof told.url === "string" ? told.url : DEFAULT_SETTINGS.url,
    secret: typeof told.secret === "string" ? told.secret : "",
    agent: typeof told.agent === "string" ? told.agent : "",
    scope: told.scope === "note" ? "note" : "vault",
    mentionNote: told.mentionNote !== false,
    sessions: Object.fromEntries(sessions),
  };
}

/** The conversations after a note or a folder was moved. */
export function moved(sessions: Record<string, string>, from: string, to: string): Record<string, string> {
  return Object.fromEntries(
    Object.entries(sessions).map(([path, id]) => {
      if (path === from) return [to, id];
      return path.startsWith(`${from}/`) ? [to + path.slice(from.length), id] : [path, id];
    }),
  );
}
