/** Obsidian's API for the page: the mocks, and a `requestUrl` without CORS, as in Obsidian. */

export * from "obsidian-test-mocks/obsidian";

interface RequestOptions {
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
    askWithoutOrigin(request: RequestOptions): Promise<Answer>;
  }
}

export const requestUrl = (request: RequestOptions): Promise<Answer> => window.askWithoutOrigin(request);
