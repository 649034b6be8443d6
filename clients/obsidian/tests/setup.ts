/**
 * Obsidian's additions to the DOM, and two parts that the mocks lack: a renderer of plain text, and a `requestUrl` that
 * sends real requests, also while `fetch` is mocked.
 */

import { setup } from "obsidian-test-mocks/setup";
import { vi } from "vitest";

setup();

const realFetch = globalThis.fetch;

vi.mock("obsidian-test-mocks/obsidian", async (original) => {
  const mocks = await original<typeof import("obsidian-test-mocks/obsidian")>();
  mocks.MarkdownRenderer.render = async (_app, markdown, el) => {
    rendered.push(markdown);
    await Promise.resolve();
    for (const block of markdown.split(/\n{2,}/)) {
      if (block.trim()) el.createEl("p", { text: block });
    }
  };
  const requestUrl = async (request: { url: string; method: string; headers: Record<string, string>; body?: string }) => {
    const { url, method, headers, body } = request;
    const answer = await realFetch(url, { method, headers, body });
    return { status: answer.status, headers: Object.fromEntries(answer.headers), text: await answer.text() };
  };
  return { ...mocks, requestUrl };
});

/** The texts that were passed to Obsidian's renderer, in order. */
export const rendered: string[] = [];
