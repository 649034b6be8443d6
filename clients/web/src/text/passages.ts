/** A document with one passage marked. Offsets count code points, as the server does. */

import { markdownFragment } from "./answer.ts";

// Rare punctuation: Markdown reads what stands beside it as it would at the edge of a word.
const OPEN = "⸨";
const CLOSE = "⸩";
const MOST_RENDERED = 150_000;
/** What makes a line a heading, an item or a quote must stay first on it. */
const LINE_START = /^(?:[ \t]*(?:[-*+]|\d+[.)]|#{1,6}|>)[ \t]+|[ \t]*\|[ \t]*|[ \t]+)+/;

/** Where a code point's number is in UTF-16. */
export function unitOffset(text: string, codePoints: number): number {
  let unit = 0;
  for (let count = 0; count < codePoints && unit < text.length; count++) {
    unit += text.codePointAt(unit)! > 0xffff ? 2 : 1;
  }
  return unit;
}

/** The document as it is meant to be read, if it is Markdown; else, or if the passage cannot be marked in it, as text. */
export function documentFragment(text: string, isMarkdown: boolean, start?: number, end?: number): DocumentFragment {
  const first = start === undefined ? 0 : unitOffset(text, start);
  const last = end === undefined ? 0 : unitOffset(text, end);
  if (isMarkdown && text.length <= MOST_RENDERED && !text.includes(OPEN) && !text.includes(CLOSE)) {
    const rendered = markdownFragment(last > first ? bracketed(text, first, last) : text);
    if (last <= first || markBetween(rendered)) return rendered;
  }
  return plainText(text, first, last);
}

function plainText(text: string, first: number, last: number): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const paper = document.createElement("div");
  paper.className = "plain";
  paper.append(text.slice(0, first));
  if (last > first) {
    const mark = document.createElement("mark");
    mark.textContent = text.slice(first, last);
    paper.append(mark);
  }
  paper.append(text.slice(last));
  fragment.append(paper);
  return fragment;
}

export function bracketed(text: string, first: number, last: number): string {
  let from = first;
  while (from < last && /\s/.test(text[from]!)) from++;
  if (from === 0 || text[from - 1] === "\n" || /^[ \t]+$/.test(text.slice(text.lastIndexOf("\n", from - 1) + 1, from))) {
    const line = text.slice(from, last);
    from += /^ {0,3}(?:```|~~~)/.test(line) ? line.indexOf("\n") + 1 : (LINE_START.exec(line)?.[0].length ?? 0);
  }
  let to = last;
  while (to > from && /\s/.test(text[to - 1]!)) to--;
  return text.slice(0, from) + OPEN + text.slice(from, to) + CLOSE + text.slice(to);
}

/** Takes the two brackets out again and marks all text between them. False if they are not both there. */
function markBetween(fragment: DocumentFragment): boolean {
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  const found: Text[] = [];
  let state: "before" | "inside" | "after" = "before";
  for (let node = walker.nextNode() as Text | null; node; node = walker.nextNode() as Text | null) {
    if (state === "before" && node.data.includes(OPEN)) {
      const rest = node.splitText(node.data.indexOf(OPEN));
      rest.deleteData(0, 1);
      walker.currentNode = node = rest;
      state = "inside";
    }
    if (state === "inside") {
      const end = node.data.indexOf(CLOSE);
      if (end >= 0) {
        const rest = node.splitText(end);
        rest.deleteData(0, 1);
        state = "after";
      }
      if (node.data.trim()) found.push(node);
      if (end >= 0) break;
    }
  }
  for (const text of found) {
    const mark = document.createElement("mark");
    text.replaceWith(mark);
    mark.append(text);
  }
  return state === "after" && found.length > 0;
}
