/**
 * An answer that grows, split into blocks of Markdown.
 *
 * All blocks but the last one are final: more text cannot change them. So what is new costs as much as the last block
 * is long, and not as much as the answer.
 */

import { type Block, lexBlocks } from "./markdown.ts";

export interface Growth {
  /** Whether everything said before is void, because the text is another one. */
  isAnew: boolean;
  /** What has become final since the last time. */
  settled: Block[];
  /** What may still change. */
  open: Block[];
}

export class BlockSplitter {
  #settled = "";
  #hasCites: boolean | null = null;

  grow(written: string, hasCites = false): Growth {
    const text = written.replace(/\r\n?/g, "\n");
    const isAnew = hasCites !== (this.#hasCites ?? hasCites) || !text.startsWith(this.#settled);
    if (isAnew) this.#settled = "";
    this.#hasCites = hasCites;
    const blocks = lexBlocks(text.slice(this.#settled.length), hasCites);
    const last = blocks.findLastIndex((block) => block.type !== "space");
    const settled = blocks.slice(0, Math.max(0, last));
    this.#settled = text.slice(
      0,
      this.#settled.length + settled.reduce((length, block) => length + block.raw.length, 0),
    );
    return { isAnew, settled, open: blocks.slice(Math.max(0, last)) };
  }
}
