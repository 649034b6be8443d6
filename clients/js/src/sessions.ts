/** Sessions: create, list, rename, export, share and delete. */

import type { Session, SessionExport, SessionPage, SessionWithTurns, SharedLink } from "./api_types.js";
import type { Http } from "./http.js";
import { queryOf } from "./http.js";

export class Sessions {
  readonly #http: Http;

  constructor(http: Http) {
    this.#http = http;
  }

  /** Creates a session; your own `id` is created only once. */
  create(options: { id?: string; title?: string } = {}): Promise<Session> {
    // Without an id, a retry would create a second session.
    const attempts = options.id === undefined ? { attempts: 1 } : {};
    return this.#http.json({ method: "POST", path: "/v1/sessions", body: options, ...attempts });
  }

  /** Lists sessions, newest activity first. */
  list(options: { search?: string; before?: string; limit?: number } = {}): Promise<SessionPage> {
    return this.#http.json({ path: `/v1/sessions${queryOf(options)}` });
  }

  get(id: string, options: { limit?: number } = {}): Promise<SessionWithTurns> {
    return this.#http.json({ path: sessionPath(id) + queryOf(options) });
  }

  rename(id: string, title: string): Promise<Session> {
    return this.#http.json({ method: "PATCH", path: sessionPath(id), body: { title } });
  }

  /** Deletes a session with its turns and logs. */
  delete(id: string): Promise<void> {
    return this.#http.remove(sessionPath(id));
  }

  export(id: string): Promise<SessionExport> {
    return this.#http.json({ path: `${sessionPath(id)}/export` });
  }

  /** Returns the address of a file of the session's messages, for requests with the user's cookie or key. */
  fileAddress(id: string, digest: string): string {
    return `${this.#http.url}${sessionPath(id)}/files/${digest}`;
  }

  /** Makes a link by which anybody can read the session. It is not retried: every attempt may make another link. */
  share(id: string): Promise<SharedLink> {
    return this.#http.json({ method: "POST", path: `${sessionPath(id)}/share`, attempts: 1 });
  }

  /** Revokes all links to the session. */
  unshare(id: string): Promise<void> {
    return this.#http.json({ method: "DELETE", path: `${sessionPath(id)}/share` });
  }
}

export function sessionPath(id: string): string {
  return `/v1/sessions/${encodeURIComponent(id)}`;
}
