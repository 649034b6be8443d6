/** Renders an answer while it grows: settled blocks are rendered once, only the last one is rendered again. */

import { BlockSplitter, type Piece } from "./blocks.ts";
import { lexBlocks, renderBlocks } from "./markdown.ts";
import { safeFragment } from "./safety.ts";

/** A code chunk of this length is final; later code goes into a new chunk. */
const LONG_CHUNK = 2_000;

export class AnswerView {
  #splitter = new BlockSplitter();
  #hasCites = false;
  /** The elements that may still change. */
  #open: Element[] = [];
  /** The list element that takes the items of a cut list. */
  #list: Element | null = null;
  /** The code block that is being written, and its text so far. */
  #code: { element: Element; text: string } | null = null;

  constructor(readonly element: HTMLElement) {}

  show(text: string, hasCites: boolean): void {
    const { isRestarted, settled, open } = this.#splitter.grow(text, hasCites);
    this.#hasCites = hasCites;
    if (isRestarted) this.element.replaceChildren();
    else if (!settled.length && this.#writeCode(open)) return;
    for (const element of this.#open) element.remove();
    for (const piece of settled) this.#write(piece);
    this.#open = open.blocks.length ? this.#write(open) : [];
    const code = open.blocks[0]?.type === "code" ? this.#open[0]?.querySelector("code") : null;
    this.#code = code ? { element: code, text: code.textContent ?? "" } : null;
  }

  #write({ blocks, isJoined }: Piece): Element[] {
    const fragment = decorate(safeFragment(renderBlocks(blocks, this.#hasCites)));
    if (isJoined && this.#list) {
      const items = [...(fragment.firstElementChild?.children ?? [])];
      this.#list.append(...items);
      return items;
    }
    const block = create("div", "block");
    block.append(fragment);
    this.element.append(block);
    if (block.firstElementChild) this.#list = block.querySelector(":scope > ul, :scope > ol");
    return [block];
  }

  /** Appends to a code block: code is plain text that grows only at its end. Returns false if it is none. */
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
      element.append(create("span", "chunk", (more = more.slice(end))));
    } else {
      chunk.append(more);
      chunk.normalize();
    }
    return true;
  }
}

/** Renders any Markdown. */
export function markdownFragment(text: string): DocumentFragment {
  return decorate(safeFragment(renderBlocks(lexBlocks(text, false), false)));
}

/** Adds chips, copy buttons and scroll frames, after the text was sanitized. */
function decorate(fragment: DocumentFragment): DocumentFragment {
  for (const mark of fragment.querySelectorAll<HTMLElement>("[data-cite]")) {
    const chip = create("button", "cite");
    chip.type = "button";
    chip.dataset.cite = chip.textContent = mark.dataset.cite ?? "";
    chip.setAttribute("aria-label", `Source ${chip.dataset.cite}`);
    mark.replaceWith(chip);
  }
  for (const code of fragment.querySelectorAll("pre")) {
    const frame = create("div", "code");
    const head = create("div", "code-head");
    const copy = create("button", "quiet");
    copy.type = "button";
    copy.dataset.copy = "";
    copy.textContent = "Copy";
    head.append(create("span", "", code.dataset.lang || "text"), copy);
    code.replaceWith(frame);
    focusable(code, "Code");
    frame.append(head, code);
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = create("div", "wide");
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

/** Makes an element that scrolls sideways reachable by keyboard. */
function focusable(element: HTMLElement, label: string): void {
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
}

function create<Name extends "div" | "button" | "span">(
  name: Name,
  className: string,
  text = "",
): HTMLElementTagNameMap[Name] {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
