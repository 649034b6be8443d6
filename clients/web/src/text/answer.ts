/** Shows an answer while it grows: settled blocks are made once and left alone, only the last one is made again. */

import { BlockSplitter, type Piece } from "./blocks.ts";
import { lexBlocks, renderBlocks } from "./markdown.ts";
import { safeFragment } from "./safety.ts";

/** A chunk of code this long is left alone; what comes next gets a chunk of its own. */
const LONG_CHUNK = 2_000;

export class AnswerPaper {
  #splitter = new BlockSplitter();
  #hasCites = false;
  /** What may still change: made again each time. */
  #open: Element[] = [];
  /** Where the items of a list go that was cut. */
  #list: Element | null = null;
  /** A code block that is being written, and how much of it is. */
  #code: { element: Element; text: string } | null = null;

  constructor(readonly element: HTMLElement) {}

  show(text: string, hasCites: boolean): void {
    const { isAnew, settled, open } = this.#splitter.grow(text, hasCites);
    this.#hasCites = hasCites;
    if (isAnew) this.element.replaceChildren();
    else if (!settled.length && this.#writeCode(open)) return;
    for (const element of this.#open) element.remove();
    for (const piece of settled) this.#write(piece);
    this.#open = open.blocks.length ? this.#write(open) : [];
    const code = open.blocks[0]?.type === "code" ? this.#open[0]?.querySelector("code") : null;
    this.#code = code ? { element: code, text: code.textContent ?? "" } : null;
  }

  #write({ blocks, isJoined }: Piece): Element[] {
    const fragment = furnished(safeFragment(renderBlocks(blocks, this.#hasCites)));
    if (isJoined && this.#list) {
      const items = [...(fragment.firstElementChild?.children ?? [])];
      this.#list.append(...items);
      return items;
    }
    const block = make("div", "block");
    block.append(fragment);
    this.element.append(block);
    if (block.firstElementChild) this.#list = block.querySelector(":scope > ul, :scope > ol");
    return [block];
  }

  /** Code only grows at its end, and is text alone: nothing of it needs to be made again. */
  #writeCode({ blocks }: Piece): boolean {
    const [block] = blocks;
    if (!this.#code || block?.type !== "code" || !block.text.startsWith(this.#code.text)) return false;
    let more: string = block.text.slice(this.#code.text.length);
    this.#code.text = block.text;
    const { element } = this.#code;
    const chunk = element.lastElementChild ?? element;
    const end = (chunk.textContent ?? "").length > LONG_CHUNK ? more.indexOf("\n") + 1 : 0;
    if (end) {
      chunk.append(more.slice(0, end));
      element.append(make("span", "chunk", (more = more.slice(end))));
    } else {
      chunk.append(more);
      chunk.normalize();
    }
    return true;
  }
}

/** Any Markdown at once. */
export function markdownFragment(text: string): DocumentFragment {
  return furnished(safeFragment(renderBlocks(lexBlocks(text, false), false)));
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
