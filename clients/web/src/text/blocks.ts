/**
 * A splitter of a growing answer into Markdown blocks.
 *
 * All blocks but the last are final: more text cannot change them. A long list is cut before its last item in the same
 * way. So new text costs time in proportion to the last block, not to the answer.
 */

import type { Tokens, TokensList } from "marked";
import { type Block, lexBlocks } from "./markdown.ts";

export interface Piece {
  blocks: Block[];
  /** True if its items continue the list of the piece before. */
  isJoined: boolean;
}

export interface Growth {
  /** True if all earlier pieces are void, because the text was replaced. */
  isRestarted: boolean;
  /** The pieces that have become final. */
  settled: Piece[];
  /** The piece that may still change. */
  open: Piece;
}

/** Shorter lists are not cut. */
const LONG_LIST = 1_500;

export class BlockSplitter {
  #settled = "";
  #hasCites: boolean | null = null;
  /** The list that was cut, while it continues. */
  #list: Tokens.List | null = null;
  #links: TokensList["links"] = {};

  grow(written: string, hasCites = false): Growth {
    const text = written.replace(/\r\n?/g, "\n");
    const isRestarted = hasCites !== (this.#hasCites ?? hasCites) || !text.startsWith(this.#settled);
    if (isRestarted) this.#forget();
    this.#hasCites = hasCites;
    const blocks = lexBlocks(text.slice(this.#settled.length), hasCites, this.#links);
    const last = Math.max(
      0,
      blocks.findLastIndex((block) => block.type !== "space"),
    );
    const settled = blocks.slice(0, last).map((block) => this.#settle(block));
    let open: Piece = { blocks: blocks.slice(last), isJoined: this.#joins(blocks[last]) };
    const cut = cutList(blocks[last]);
    if (cut) {
      settled.push(this.#settle(cut[0]));
      this.#list = cut[0];
      open = { blocks: [cut[1], ...blocks.slice(last + 1)], isJoined: this.#joins(cut[1]) };
    }
    this.#settled = text.slice(
      0,
      settled.reduce((length, piece) => length + piece.blocks[0]!.raw.length, this.#settled.length),
    );
    return { isRestarted, settled, open };
  }

  #settle(block: Block): Piece {
    const isJoined = this.#joins(block);
    if (block.type !== "space") this.#list = null;
    if (block.type === "definition") {
      const { name, link } = block as Tokens.Generic;
      this.#links[name] = link;
    }
    return { blocks: [block], isJoined };
  }

  /** Returns true if the block continues the cut list, and copies its spacing. */
  #joins(block: Block | undefined): boolean {
    const list = this.#list;
    if (!list || block?.type !== "list" || block.ordered !== list.ordered) return false;
    block.loose ||= list.loose;
    return true;
  }

  #forget(): void {
    this.#settled = "";
    this.#list = null;
    this.#links = {};
  }
}

/** Splits a long list before its last item. */
function cutList(block: Block | undefined): [Tokens.List, Tokens.List] | null {
  if (block?.type !== "list" || block.items.length < 2 || block.raw.length < LONG_LIST) return null;
  const list = block as Tokens.List;
  const items = list.items.slice(0, -1);
  const raw = items.map((item) => item.raw).join("");
  if (!list.raw.startsWith(raw)) return null;
  return [
    { ...list, items, raw },
    { ...list, items: list.items.slice(-1), raw: list.raw.slice(raw.length) },
  ];
}
