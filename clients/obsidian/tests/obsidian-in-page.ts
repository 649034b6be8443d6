/** Obsidian's API for the page: the mocks, and a `requestUrl` that, as in Obsidian, no origin stands in the way of. */

export * from "obsidian-test-mocks/obsidian";

interface Asked {
  url: string;
  method: string;
  headers: Record<string, string>;
  body?: string;
}

interface Answer {
  status: number;
  headers: Record<string, string>;
  text: string;
}

declare global {
  interface Window {
    askWithoutOrigin(asked: Asked): Promise<Answer>;
  }
}

export const requestUrl = (asked: Asked): Promise<Answer> => window.askWithoutOrigin(asked);
