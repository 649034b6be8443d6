/** A document with a marked passage. Offsets count code points. */

import { markdownFragment } from "./answer.ts";
import { bracketed, CLOSE, OPEN, unitOffset } from "./offsets.ts";

const MAX_RENDERED = 150_000;

/** Renders a Markdown document; any other, and one whose passage cannot be marked, as plain text. */
export function documentFragment(text: string, isMarkdown: boolean, start?: number, end?: number): DocumentFragment {
  const first = start === undefined ? 0 : unitOffset(text, start);
  const last = end === undefined ? 0 : unitOffset(text, end);
  if (isMarkdown && text.length <= MAX_RENDERED && !text.includes(OPEN) && !text.includes(CLOSE)) {
    const rendered = markdownFragment(last > first ? bracketed(text, first, last) : text);
    if (last <= first || markBetween(rendered)) return rendered;
  }
  return plainText(text, first, last);
}

function plainText(text: string, first: number, last: number): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const body = document.createElement("div");
  body.className = "plain";
  body.append(text.slice(0, first));
  if (last > first) {
    const mark = document.createElement("mark");
    mark.textContent = text.slice(first, last);
    body.append(mark);
  }
  body.append(text.slice(last));
  fragment.append(body);
  return fragment;
}

/** Replaces the two brackets by a mark. Returns false if one of them is missing. */
function markBetween(fragment: DocumentFragment): boolean {
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  const texts: Text[] = [];
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
      if (node.data.trim()) texts.push(node);
      if (end >= 0) break;
    }
  }
  for (const text of texts) {
    const mark = document.createElement("mark");
    text.replaceWith(mark);
    mark.append(text);
  }
  return state === "after" && texts.length > 0;
}
