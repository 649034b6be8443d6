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

/** Formulas: `$x$`, `\\(x\\)`, and on their own lines `$$x$$` and `\\[x\\]`. Markdown would eat their backslashes. */
const INLINE_MATHS = /^(?:\$(?![\s$])((?:\\[^\n]|[^\\$\n])+?)(?<!\s)\$(?!\w)|\\\(((?:(?!\n[ \t]*\n|\\\))[\s\S])+)\\\)|\$\$([^$\n]+)\$\$)/;
/** A formula that is not closed yet goes on to the next empty line, so that its lines never become lists or headings. */
const BLOCK_MATHS =
  /^[ \t]{0,3}(?:\$\$((?:(?!\n[ \t]*\n|\$\$)[\s\S])+)(\$\$[ \t]*(?:\n+|$)|$)|\\\[((?:(?!\n[ \t]*\n|\\\])[\s\S])+)(\\\][ \t]*(?:\n+|$)|$))/;

const inlineMaths = {
  name: "inlineMaths",
  level: "inline" as const,
  start: (text: string) => text.match(/\$|\\\(/)?.index,
  tokenizer(text: string) {
    const found = INLINE_MATHS.exec(text);
    return found ? { type: "inlineMaths", raw: found[0], text: found[1] ?? found[2] ?? found[3] } : undefined;
  },
  renderer: (token: Tokens.Generic) => `<span data-maths="inline">${escape((token.text as string).trim())}</span>`,
};
const blockMaths = {
  name: "blockMaths",
  level: "block" as const,
  /** Searches up to the next empty line, where a paragraph ends anyway: to the end it would take quadratic time. */
  start: (text: string) => /^(?:(?!\n\n)[^])*?(?=\n[ \t]{0,3}(?:\$\$|\\\[))/.exec(text)?.[0].length,
  tokenizer(text: string) {
    const found = BLOCK_MATHS.exec(text);
    if (!found) return undefined;
    const isClosed = !!(found[2] || found[4]);
    return { type: "blockMaths", raw: found[0], text: isClosed ? (found[1] ?? found[3])!.trim() : found[0], isClosed };
  },
  renderer: (token: Tokens.Generic) =>
    token.isClosed ? `<div data-maths="block">${escape(token.text as string)}</div>` : `<p>${escape(token.text as string)}</p>`,
};

/** Link definitions. Without a token of their own, the blocks would not add up to the text. */
const definitions = {
  name: "definition",
  level: "block" as const,
  tokenizer(this: { lexer: { tokens: TokensList } }, text: string) {
    const found = /^ {0,3}\[([^\]\n]+)\]: *<?([^\s<>]+)>?(?: +["'(]([^\n]*)["')])? *(?:\n+|$)/.exec(text);
    if (!found) return undefined;
    const name = found[1]!.toLowerCase().replace(/\s+/g, " ");
    const link = (this.lexer.tokens.links[name] ??= { href: found[2]!, title: found[3] ?? null });
    return { type: "definition", raw: found[0], name, link };
  },
  renderer: () => "",
};

const renderer = {
  code(text: string, lang = "") {
    return `<pre data-lang="${escape(lang.split(/\s/)[0]!)}"><code>${escape(text)}</code></pre>`;
  },
  checkbox: (isChecked: boolean) => `<span data-task="${isChecked ? "x" : ""}"></span>`,
};

const plain = new Marked({ gfm: true, renderer, extensions: [definitions, blockMaths, inlineMaths] });
const cited = new Marked({ gfm: true, renderer, extensions: [definitions, blockMaths, inlineMaths, cites] });

export type Block = TokensList[number];

/** Returns the blocks of a text, which may use the links that the text before it has defined. */
export function lexBlocks(text: string, hasCites: boolean, links: TokensList["links"] = {}): TokensList {
  const { Lexer, defaults } = hasCites ? cited : plain;
  const lexer = new Lexer(defaults);
  Object.assign(lexer.tokens.links, links);
  return lexer.lex(text);
}

export function renderBlocks(blocks: Block[], hasCites: boolean): string {
  return (hasCites ? cited : plain).parser(blocks);
}

/** Returns the numbers of the citations in the order in which they first appear: the first one is shown as 1. */
export function citationOrder(text: string): Map<number, number> {
  const order = new Map<number, number>();
  cited.walkTokens(lexBlocks(text.replace(/\r\n?/g, "\n"), true), (token) => {
    if (token.type !== "cite") return;
    for (const number of (token as Tokens.Generic).numbers as string[]) {
      if (!order.has(Number(number))) order.set(Number(number), order.size + 1);
    }
  });
  return order;
}

/** Returns the text with its citations as they are numbered on the page; code stays as it is. */
export function renumbered(text: string): string {
  const order = citationOrder(text);
  const parts = text.split(/(```[\s\S]*?(?:```|$)|`[^`\n]*`)/);
  const marker = /\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\](?![(:])/g;
  const renumber = (part: string) =>
    part.replace(marker, (_, list: string) => `[${list.replace(/\d+/g, (number) => `${order.get(Number(number)) ?? number}`)}]`);
  return parts.map((part, index) => (index % 2 ? part : renumber(part))).join("");
}

function escape(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
