/** The list of sessions at the side: what is found, the newest first, and kept fresh. */

import type { Session } from "../../js/src/index.ts";
import { Observed } from "./observed.ts";
import { isHidden } from "./seen.ts";
import { client } from "./server.ts";

const PAGE = 40;
const FRESH_MS = 15_000;
const TYPING_MS = 180;

export class SessionList extends Observed {
  sessions: Session[] | null = null;
  hasMore = false;
  search = "";
  #asked = 0;
  readonly #clock: ReturnType<typeof setInterval>;
  #soon: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    super();
    // Others may ask too, from other devices; nothing tells of sessions that nobody here follows.
    this.#clock = setInterval(() => !isHidden() && this.#shown <= PAGE && this.refresh(), FRESH_MS);
    document.addEventListener("visibilitychange", this.#onVisibility);
  }

  close(): void {
    clearInterval(this.#clock);
    clearTimeout(this.#soon);
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
    clearTimeout(this.#soon);
    this.#soon = setTimeout(() => void this.#load(), after);
  }

  more(): void {
    void this.#load(this.sessions?.at(-1)?.id);
  }

  async rename(id: string, title: string): Promise<void> {
    this.sessions = this.sessions?.map((one) => (one.id === id ? { ...one, title } : one)) ?? null;
    this.changed();
    await client.sessions.rename(id, title);
  }

  async delete(id: string): Promise<void> {
    await client.sessions.delete(id);
    this.sessions = this.sessions?.filter((one) => one.id !== id) ?? null;
    this.changed();
    this.refresh();
  }

  async #load(before?: string): Promise<void> {
    const asked = ++this.#asked;
    const options = {
      limit: PAGE,
      ...(this.search.trim() ? { search: this.search.trim() } : {}),
      ...(before ? { before } : {}),
    };
    // If it fails, what is shown stays; whether the server is there is told elsewhere.
    const page = await client.sessions.list(options).catch(() => null);
    if (!page || asked !== this.#asked) return;
    this.sessions = before ? [...(this.sessions ?? []), ...page.sessions] : page.sessions;
    this.hasMore = page.next !== null;
    this.changed();
  }
}
