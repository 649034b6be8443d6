/** The list of sessions in the sidebar, newest first, refreshed regularly. */

import type { Session } from "../../js/src/index.ts";
import { Observable } from "./observable.ts";
import { isHidden } from "./visibility.ts";
import { client } from "./server.ts";

const PAGE = 40;
/** The server lists no more at once. */
const MAX_LISTED = 200;
const FRESH_MS = 15_000;
const TYPING_MS = 180;

export class SessionList extends Observable {
  sessions: Session[] | null = null;
  hasMore = false;
  search = "";
  #request = 0;
  readonly #interval: ReturnType<typeof setInterval>;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    super();
    // Other devices may start turns, and there is no stream over all sessions.
    this.#interval = setInterval(() => !isHidden() && this.#shown <= PAGE && this.refresh(), FRESH_MS);
    document.addEventListener("visibilitychange", this.#onVisibility);
  }

  close(): void {
    clearInterval(this.#interval);
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#onVisibility);
  }

  #onVisibility = (): void => {
    if (!isHidden()) this.refresh();
  };

  get #shown(): number {
    return this.sessions?.length ?? 0;
  }

  find(search: string): void {
    this.search = search;
    this.changed();
    this.refresh(TYPING_MS);
  }

  refresh(after = 300): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#load(), after);
  }

  more(): void {
    void this.#load(this.sessions?.at(-1)?.id);
  }

  async rename(id: string, title: string): Promise<void> {
    this.sessions = this.sessions?.map((session) => (session.id === id ? { ...session, title } : session)) ?? null;
    this.changed();
    await client.sessions.rename(id, title);
  }

  async delete(id: string): Promise<void> {
    await client.sessions.delete(id);
    this.sessions = this.sessions?.filter((session) => session.id !== id) ?? null;
    this.changed();
    this.refresh();
  }

  async #load(before?: string): Promise<void> {
    const request = ++this.#request;
    const options = {
      // As many pages as are shown.
      limit: before ? PAGE : Math.min(MAX_LISTED, PAGE * Math.max(1, Math.ceil(this.#shown / PAGE))),
      ...(this.search.trim() ? { search: this.search.trim() } : {}),
      ...(before ? { before } : {}),
    };
    // On failure the list stays; the connection state is shown elsewhere.
    const page = await client.sessions.list(options).catch(() => null);
    if (!page || request !== this.#request) return;
    this.sessions = before ? [...(this.sessions ?? []), ...page.sessions] : page.sessions;
    this.hasMore = page.next !== null;
    this.changed();
  }
}
