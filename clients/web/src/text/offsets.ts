/** Offsets in a text, and brackets that mark a passage. */

export { unitOffset } from "../../../js/src/view.ts";

// Rare punctuation, which Markdown treats as the edge of a word.
export const OPEN = "⸨";
export const CLOSE = "⸩";

/** The prefix of a heading, item or quote, which must stay first in its line. */
const LINE_START = /^(?:[ \t]*(?:[-*+]|\d+[.)]|#{1,6}|>)[ \t]+|[ \t]*\|[ \t]*|[ \t]+)+/;

/** Returns the text with brackets around a passage, where they do not change the Markdown of its lines. */
export function bracketed(text: string, first: number, last: number): string {
  let from = first;
  while (from < last && /\s/.test(text[from]!)) from++;
  if (
    from === 0 ||
    text[from - 1] === "\n" ||
    /^[ \t]+$/.test(text.slice(text.lastIndexOf("\n", from - 1) + 1, from))
  ) {
    const line = text.slice(from, last);
    from += /^ {0,3}(?:```|~~~)/.test(line) ? line.indexOf("\n") + 1 : (LINE_START.exec(line)?.[0].length ?? 0);
  }
  let to = last;
  while (to > from && /\s/.test(text[to - 1]!)) to--;
  return text.slice(0, from) + OPEN + text.slice(from, to) + CLOSE + text.slice(to);
}
