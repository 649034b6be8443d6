/**
 * Obsidian's additions to the DOM, and what the mocks leave out of it: the renderer as far as tests need it, text in, text
 * out; and `requestUrl`, which asks for real, with no regard to what `fetch` is made to do.
 */

import { setup } from "obsidian-test-mocks/setup";
import { vi } from "vitest";

setup();

const ask = globalThis.fetch;

vi.mock("obsidian-test-mocks/obsidian", async (original) => {
  const mocks = await original<typeof import("obsidian-test-mocks/obsidian")>();
  mocks.MarkdownRenderer.render = async (_app, markdown, el) => {
    rendered.push(markdown);
    await Promise.resolve();
    for (const block of markdown.split(/\n{2,}/)) {
      if (block.trim()) el.createEl("p", { text: block });
    }
  };
  const requestUrl = async (asked: { url: string; method: string; headers: Record<string, string>; body?: string }) => {
    const { url, method, headers, body } = asked;
    const answer = await ask(url, { method, headers, body });
    return { status: answer.status, headers: Object.fromEntries(answer.headers), text: await answer.text() };
  };
  return { ...mocks, requestUrl };
});

/** What was given to Obsidian's renderer, in order. */
export const rendered: string[] = [];
