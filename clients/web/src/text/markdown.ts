/** Markdown, lexed and rendered by blocks. The HTML is not yet safe: see `safety`. */

import { Marked, type Tokens, type TokensList } from "marked";

const CITES = /^\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\](?![(:])/;

/** Citations such as `[3]` and `[1, 2]`, in an answer that has sources. */
const cites = {
  name: "cite",
  level: "inline" as const,
  start: (text: string) => text.match(/\[\d/)?.index,
  tokenizer(text: string) {
    const found = CITES.exec(text);
    return found ? { type: "cite", raw: found[0], numbers: found[1]!.split(/\D+/) } : undefined;
  },
  renderer: (token: Tokens.Generic) =>
    (token.numbers as string[]).map((number) => `<sup data-cite="${number}">${number}</sup>`).join(""),
};

const renderer = {
  code(text: string, lang = "") {
    return `<pre data-lang="${escape(lang.split(/\s/)[0]!)}"><code>${escape(text)}</code></pre>`;
  },
  checkbox: (isChecked: boolean) => `<span data-task="${isChecked ? "x" : ""}"></span>`,
};

const plain = new Marked({ gfm: true, renderer });
const cited = new Marked({ gfm: true, renderer, extensions: [cites] });

export type Block = TokensList[number];

export function lexBlocks(text: string, hasCites: boolean): Block[] {
  return (hasCites ? cited : plain).lexer(text);
}

export function renderBlocks(blocks: Block[], hasCites: boolean): string {
  return (hasCites ? cited : plain).parser(blocks);
}

function escape(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
