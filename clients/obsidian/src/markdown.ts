/**
 * Sanitizing answers before Obsidian renders them.
 *
 * A model may repeat hostile text of a note, and Obsidian's renderer loads remote pictures, renders HTML and passes code
 * blocks to plugins that run them. So all of this is disabled in the text first. No text is lost: a picture becomes a link.
 */

/** An invisible character that separates two characters of a Markdown marker. */
const ZERO_WIDTH = "\u200b";
const LANGUAGES = new Set(
  ("bash c c++ cpp cs csharp css diff dockerfile go graphql haskell html http ini java javascript js json jsx kotlin latex lua " +
    "makefile markdown md nix objc perl php plaintext powershell python py r ruby rust scala sh shell sql swift text toml ts " +
    "tsx typescript txt xml yaml yml zig").split(" "),
);
const FENCE = /^ {0,9}(`{3,}|~{3,})[ \t]*([^\s`~]*)([^`]*)$/;
/** A fence inside a quote or a list, which keeps its position. */
const INNER_FENCE = /^([\s>*+.)\d-]*)(`{3,}|~{3,})([^`]*)$/;
const LIST = /^([-*+]|\d{1,9}[.)])\s/;

/** Returns the text in a form that loads nothing, runs nothing and has no HTML. */
export function harmless(markdown: string): string {
  const out: string[] = [];
  let fence: { mark: string; lines: string[]; language: string } | undefined;
  const close = (): void => {
    if (!fence) return;
    // Rewritten without indentation and with a longer fence, so that Obsidian sees the same end.
    const longest = Math.max(2, ...fence.lines.flatMap((line) => (line.match(/`+/g) ?? []).map((run) => run.length)));
    const mark = "`".repeat(longest + 1);
    out.push("", mark + shownLanguage(fence.language), ...fence.lines, mark);
    fence = undefined;
  };
  for (const line of markdown.split("\n")) {
    const match = FENCE.exec(line);
    if (fence) {
      const isEnd = match?.[1]!.startsWith(fence.mark) && !match[2] && !match[3]!.trim();
      if (isEnd) close();
      else fence.lines.push(line);
    } else if (match) fence = { mark: match[1]!, lines: [], language: match[2]! };
    else out.push(inert(line));
  }
  close();
  return out.join("\n");
}

/** Keeps the names of languages that no known plugin runs. */
function shownLanguage(language: string): string {
  return LANGUAGES.has(language.toLowerCase()) ? language : "";
}

function inert(line: string): string {
  return line
    .replace(INNER_FENCE, (_, before: string, mark: string, language: string) => before + mark + shownLanguage(language.trim()))
    .replace(/<(?=[a-zA-Z/!?])/g, `<${ZERO_WIDTH}`)
    .replace(/!(?=\[)/g, `!${ZERO_WIDTH}`)
    .replace(/(`+)(?=[ \t]*\$?=)/g, `$1${ZERO_WIDTH}`);
}

/**
 * Returns the end of the blocks that can no longer change, which may be rendered; the rest is still being written. `from`
 * is the result of an earlier call.
 */
export function finishedEnd(text: string, from: number): number {
  let end = from;
  let start = from;
  let mark: string | undefined;
  let isList = false;
  let isBlank = true;
  for (let at = from; at < text.length; ) {
    const stop = text.indexOf("\n", at);
    if (stop < 0 && (isBlank ? !/\S/.test(text.slice(at)) : true)) break;
    const line = text.slice(at, stop < 0 ? text.length : stop);
    if (mark === undefined && line.trim() && isBlank && at > start) {
      // A line that continues a list, or is indented, belongs to the block before it.
      const isContinued = /^\s/.test(line) || (isList && LIST.test(line)) || (stop < 0 && line.length < 3);
      if (!isContinued) {
        end = at;
        start = at;
        isList = false;
      }
    }
    if (stop < 0) break;
    const match = FENCE.exec(line);
    if (mark !== undefined) {
      if (match?.[1]!.startsWith(mark) && !match[2]) mark = undefined;
    } else if (match) mark = match[1];
    isList ||= LIST.test(line);
    isBlank = mark === undefined && !line.trim();
    at = stop + 1;
  }
  return end;
}
