/** Shows an answer while it grows: settled blocks are made once and left alone, only the last one is made again. */

import { BlockSplitter } from "./blocks.ts";
import { type Block, renderBlocks } from "./markdown.ts";
import { safeFragment } from "./safety.ts";

export class AnswerPaper {
  #splitter = new BlockSplitter();
  #open: HTMLElement | null = null;
  #hasCites = false;

  constructor(readonly element: HTMLElement) {}

  show(text: string, hasCites: boolean): void {
    const { isAnew, settled, open } = this.#splitter.grow(text, hasCites);
    this.#hasCites = hasCites;
    if (isAnew) {
      this.element.replaceChildren();
      this.#open = null;
    }
    for (const block of settled) {
      this.#write([block]);
      this.#open = null;
    }
    if (open.length) this.#write(open);
    else {
      this.#open?.remove();
      this.#open = null;
    }
  }

  #write(blocks: Block[]): void {
    if (!this.#open) this.element.append((this.#open = make("div", "block")));
    this.#open.replaceChildren(furnished(safeFragment(renderBlocks(blocks, this.#hasCites))));
  }
}

/** Any Markdown at once. */
export function markdownFragment(text: string): DocumentFragment {
  const { settled, open } = new BlockSplitter().grow(text);
  return furnished(safeFragment(renderBlocks([...settled, ...open], false)));
}

/** Adds what is ours after the text has been made safe: chips, copy buttons, frames that scroll. */
function furnished(fragment: DocumentFragment): DocumentFragment {
  for (const mark of fragment.querySelectorAll<HTMLElement>("[data-cite]")) {
    const chip = make("button", "cite");
    chip.type = "button";
    chip.dataset.cite = chip.textContent = mark.dataset.cite ?? "";
    chip.setAttribute("aria-label", `Source ${chip.dataset.cite}`);
    mark.replaceWith(chip);
  }
  for (const code of fragment.querySelectorAll("pre")) {
    const frame = make("div", "code");
    const head = make("div", "code-head");
    const copy = make("button", "quiet");
    copy.type = "button";
    copy.dataset.copy = "";
    copy.textContent = "Copy";
    head.append(make("span", "", code.dataset.lang || "text"), copy);
    code.replaceWith(frame);
    focusable(code, "Code");
    frame.append(head, code);
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", "wide");
    table.replaceWith(frame);
    focusable(frame, "Table");
    frame.append(table);
  }
  for (const task of fragment.querySelectorAll<HTMLElement>("[data-task]")) {
    task.className = "task";
    task.textContent = task.dataset.task ? "☑ " : "☐ ";
  }
  return fragment;
}

/** What may scroll sideways must be reachable by the keyboard. */
function focusable(element: HTMLElement, label: string): void {
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
}

function make<Name extends "div" | "button" | "span">(
  name: Name,
  className: string,
  text = "",
): HTMLElementTagNameMap[Name] {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
