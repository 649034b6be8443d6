/**
 * Renders an answer while it grows: settled blocks are rendered once, only the last one is rendered again.
 *
 * A long text that is there all at once is rendered in slices, so that its beginning is shown at once.
 */

import { BlockSplitter, type Piece } from "./blocks.ts";
import { enhance } from "./enhancements.ts";
import { lexBlocks, renderBlocks } from "./markdown.ts";
import { safeFragment } from "./safety.ts";

/** A code chunk of this length is final; later code goes into a new chunk. */
const LONG_CHUNK = 2_000;
/** The numbers of characters that are rendered before the browser may paint: at first about a screen, then more. */
const FIRST_SLICE = 4_000;
const SLICE = 16_000;

interface Content {
  text: string;
  hasCites: boolean;
  /** True if nothing follows. */
  isOver: boolean;
}

export class AnswerView {
  #splitter = new BlockSplitter();
  /** What is to be shown. */
  #content: Content = { text: "", hasCites: false, isOver: false };
  /** The text that is shown so far. */
  #shown = "";
  #isPending = false;
  /** The shown number of each citation in the final blocks, in order of appearance. */
  #numbers = new Map<string, number>();
  /** The elements that may still change. */
  #open: Element[] = [];
  /** The list element that takes the items of a cut list. */
  #list: Element | null = null;
  /** The code block that is being written, and its text so far. */
  #code: { element: Element; text: string } | null = null;

  constructor(readonly element: HTMLElement) {}

  /** Shows the text so far. `isOver` says that nothing follows. */
  show(text: string, hasCites: boolean, isOver: boolean): void {
    this.#content = { text, hasCites, isOver };
    if (!this.#isPending) this.#showSlice();
  }

  #showSlice(): void {
    const { text, hasCites, isOver } = this.#content;
    const start = text.startsWith(this.#shown) ? this.#shown.length : 0;
    const length = start ? SLICE : FIRST_SLICE;
    const isLast = text.length <= start + SLICE;
    this.#shown = isLast ? text : text.slice(0, sliceEnd(text, start, length));
    this.#render({ text: this.#shown, hasCites, isOver: isOver && isLast });
    this.#isPending = !isLast;
    if (!isLast) afterPaint(() => this.#showSlice());
  }

  #render({ text, hasCites, isOver }: Content): void {
    const { isRestarted, settled, open } = this.#splitter.grow(text, hasCites);
    if (isRestarted) {
      this.element.replaceChildren();
      this.#numbers.clear();
    } else if (!settled.length && !isOver && this.#writeCode(open)) return;
    for (const element of this.#open) element.remove();
    const final = settled.flatMap((piece) => this.#write(piece, this.#numbers));
    this.#open = open.blocks.length ? this.#write(open, new Map(this.#numbers)) : [];
    enhanceSoon(isOver ? [...final, ...this.#open] : final);
    const code = open.blocks[0]?.type === "code" ? this.#open[0]?.querySelector("code") : null;
    this.#code = code ? { element: code, text: code.textContent ?? "" } : null;
  }

  #write({ blocks, isJoined }: Piece, numbers: Map<string, number>): Element[] {
    const fragment = decorate(safeFragment(renderBlocks(blocks, this.#content.hasCites)), numbers);
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

/** Returns where a slice ends: after an empty line if there is one, because a block that is cut is rendered again. */
function sliceEnd(text: string, start: number, length: number): number {
  const gap = text.lastIndexOf("\n\n", start + length);
  return gap > start ? gap + 2 : start + length;
}

/** Enhances elements when their text is shown, because that loads and runs much more code. */
function enhanceSoon(elements: Element[]): void {
  if (elements.length) afterPaint(() => elements.forEach(enhance));
}

/** Runs an action when the browser has shown what there is; a page that nobody sees is not painted. */
function afterPaint(action: () => void): void {
  if (document.hidden) setTimeout(action);
  else requestAnimationFrame(() => setTimeout(action));
}

/** Renders any Markdown. */
export function markdownFragment(text: string): DocumentFragment {
  const fragment = decorate(safeFragment(renderBlocks(lexBlocks(text, false), false)), new Map());
  enhance(fragment);
  return fragment;
}

/** Adds chips, copy buttons and scroll frames, after the text was sanitized. */
function decorate(fragment: DocumentFragment, numbers: Map<string, number>): DocumentFragment {
  for (const mark of fragment.querySelectorAll<HTMLElement>("[data-cite]")) {
    const chip = create("button", "cite");
    chip.type = "button";
    const index = (chip.dataset.cite = mark.dataset.cite ?? "");
    if (!numbers.has(index)) numbers.set(index, numbers.size + 1);
    chip.textContent = `${numbers.get(index)}`;
    chip.setAttribute("aria-label", `Source ${numbers.get(index)}`);
    mark.replaceWith(chip);
  }
  for (const code of fragment.querySelectorAll("pre")) {
    const frame = create("div", "code");
    const head = create("div", "code-head");
    const wrap = codeButton("wrap", "Wrap");
    wrap.setAttribute("aria-pressed", "false");
    head.append(create("span", "spring", code.dataset.lang || "text"), wrap, codeButton("copy", "Copy"));
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

function codeButton(action: "copy" | "wrap", text: string): HTMLButtonElement {
  const button = create("button", "quiet", text);
  button.type = "button";
  button.dataset[action] = "";
  return button;
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
