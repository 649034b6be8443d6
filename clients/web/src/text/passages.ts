/** A document with one passage marked. Offsets count code points, as the server does. */

import { markdownFragment } from "./answer.ts";
import { bracketed, CLOSE, OPEN, unitOffset } from "./offsets.ts";

const MOST_RENDERED = 150_000;

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
