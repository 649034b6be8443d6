/** Citations: finding the note and the passage, and opening it. */

import type { CitationEvent } from "@turnwire/client";
import { type App, MarkdownView, Notice } from "obsidian";

/** Returns the note path of a citation, from `obsidian://open?vault=…&file=…`; undefined for other addresses. */
export function noteOf(citation: CitationEvent): string | undefined {
  if (!citation.url?.startsWith("obsidian://open?")) return undefined;
  return new URLSearchParams(citation.url.slice("obsidian://open?".length)).get("file") ?? undefined;
}

export interface Range {
  from: number;
  to: number;
}

/**
 * Returns the range of a quote in the current note, which may have changed: the same words with any white space, nearest
 * to their old offset; otherwise the heading above them.
 */
export function findPassage(text: string, citation: CitationEvent): Range | undefined {
  const words = (citation.supporting_quote ?? "").split(/\s+/).filter(Boolean).map(escaped);
  if (words.length) {
    const near = citation.source_start ?? 0;
    const matches = [...text.matchAll(new RegExp(words.join("\\s+"), "g"))];
    const best = matches.sort((first, other) => Math.abs(first.index - near) - Math.abs(other.index - near))[0];
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

/** Opens the note with the passage selected, in the last used pane. */
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
  // The same state as Obsidian's search, which marks the passage in reading view, too.
  const match = range && { match: { content: text, matches: [[range.from, range.to]] } };
  await leaf.openFile(file, { active: true, ...(match ? { eState: match } : {}) });
  if (!range || !(leaf.view instanceof MarkdownView)) return;
  const { editor } = leaf.view;
  const selection = { from: editor.offsetToPos(range.from), to: editor.offsetToPos(range.to) };
  editor.setSelection(selection.from, selection.to);
  editor.scrollIntoView(selection, true);
}
