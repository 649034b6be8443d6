/** The settings and the sessions of notes. They are stored in the vault, so they hold no key. */

export interface TurnwireSettings {
  url: string;
  /** The name of the key in Obsidian's secret storage, not the key. */
  secret: string;
  /** The agent; empty for the server's default. */
  agent: string;
  scope: "note" | "vault";
  /** True if the first question about a note names the note. */
  mentionNote: boolean;
  /** Session ids by note path; "" is the session of the vault. */
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

/** Reads settings from untrusted data. */
export function readSettings(stored: unknown): TurnwireSettings {
  const values = (typeof stored === "object" && stored !== null ? stored : {}) as Partial<TurnwireSettings>;
  const sessions = Object.entries(values.sessions ?? {}).filter(([, id]) => typeof id === "string");
  return {
    url: typeof values.url === "string" ? values.url : DEFAULT_SETTINGS.url,
    secret: typeof values.secret === "string" ? values.secret : "",
    agent: typeof values.agent === "string" ? values.agent : "",
    scope: values.scope === "note" ? "note" : "vault",
    mentionNote: values.mentionNote !== false,
    sessions: Object.fromEntries(sessions),
  };
}

/** Returns the sessions after a note or folder was moved. */
export function movedSessions(sessions: Record<string, string>, from: string, to: string): Record<string, string> {
  return Object.fromEntries(Object.entries(sessions).map(([path, id]) => [movedPath(path, from, to), id]));
}

/** Returns the path of a note after it or its folder was moved. */
export function movedPath(path: string, from: string, to: string): string {
  return path === from || path.startsWith(`${from}/`) ? to + path.slice(from.length) : path;
}
