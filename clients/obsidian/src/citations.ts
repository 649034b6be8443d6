/** Citations: which note one means, where in it, and how to go there. */

import type { CitationEvent } from "@turnwire/client";
import { type App, MarkdownView, Notice } from "obsidian";

/** The path of the note that a citation opens, from `obsidian://open?vault=…&file=…`; undefined for anything else. */
export function noteOf(citation: CitationEvent): string | undefined {
  if (!citation.url?.startsWith("obsidian://open?")) return undefined;
  return new URLSearchParams(citation.url.slice("obsidian://open?".length)).get("file") ?? undefined;
}

export interface Range {
  from: number;
  to: number;
}

/**
 * Where a quotation stands in a note as it is now. The note may have changed since it was read: the same words, with any
 * space between them, nearest to where they were; then the heading they stood under.
 */
export function findPassage(text: string, citation: CitationEvent): Range | undefined {
  const words = (citation.supporting_quote ?? "").split(/\s+/).filter(Boolean).map(escaped);
  if (words.length) {
    const near = citation.source_start ?? 0;
    const found = [...text.matchAll(new RegExp(words.join("\\s+"), "g"))];
    const best = found.sort((one, other) => Math.abs(one.index - near) - Math.abs(other.index - near))[0];
    if (best) return { from: best.index, to: best.index + best[0].length };
  }
  const heading = citation.heading?.split(" › ").at(-1);
  if (!heading) return undefined;
  const line = new RegExp(`^#{1,6}[ \\t]+${escaped(heading)}[ \\t]*#*[ \\t]*$`, "m").exec(text);
  return line ? { from: line.index, to: line.index + line[0].length } : undefined;
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
}

/** Opens the note with the passage marked, in the pane that was used last. */
export async function openCitation(app: App, citation: CitationEvent): Promise<void> {
  const path = noteOf(citation);
  const file = path === undefined ? null : app.vault.getFileByPath(path);
  if (!file) {
    new Notice(path === undefined ? "This source is not a note." : `“${path}” is not in this vault.`);
    return;
  }
  const text = await app.vault.cachedRead(file);
  const range = findPassage(text, citation);
  const leaf = app.workspace.getLeaf(false);
  // As Obsidian's own search does it, which marks the passage in reading view too.
  const match = range && { match: { content: text, matches: [[range.from, range.to]] } };
  await leaf.openFile(file, { active: true, ...(match ? { eState: match } : {}) });
  if (!range || !(leaf.view instanceof MarkdownView)) return;
  const { editor } = leaf.view;
  const marked = { from: editor.offsetToPos(range.from), to: editor.offsetToPos(range.to) };
  editor.setSelection(marked.from, marked.to);
  editor.scrollIntoView(marked, true);
}
