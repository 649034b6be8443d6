/**
 * Answers as Markdown that Obsidian may render.
 *
 * What a model writes may come from a note that wants to be obeyed, and Obsidian's renderer does more than show text: it
 * loads pictures from anywhere, takes HTML, and hands code blocks to plugins that run them. None of that may happen to an
 * answer, so it is taken out of the text before it is rendered. Nothing visible is lost: a picture becomes a link.
 */

/** What cannot be seen, and keeps two characters from meaning something together. */
const APART = "\u200b";
const LANGUAGES = new Set(
  ("bash c c++ cpp cs csharp css diff dockerfile go graphql haskell html http ini java javascript js json jsx kotlin latex lua " +
    "makefile markdown md nix objc perl php plaintext powershell python py r ruby rust scala sh shell sql swift text toml ts " +
    "tsx typescript txt xml yaml yml zig").split(" "),
);
const FENCE = /^ {0,9}(`{3,}|~{3,})[ \t]*([^\s`~]*)([^`]*)$/;
/** One in a quotation or a list, which is left where it is. */
const INNER_FENCE = /^([\s>*+.)\d-]*)(`{3,}|~{3,})([^`]*)$/;
const LIST = /^([-*+]|\d{1,9}[.)])\s/;

/** The same text, in which nothing is loaded, run or taken for HTML. */
export function harmless(markdown: string): string {
  const out: string[] = [];
  let fence: { mark: string; lines: string[]; language: string } | undefined;
  const close = (): void => {
    if (!fence) return;
    // Written anew at the margin, with a fence of our own: Obsidian ends it where we do, whatever is around it.
    const longest = Math.max(2, ...fence.lines.flatMap((line) => (line.match(/`+/g) ?? []).map((run) => run.length)));
    const mark = "`".repeat(longest + 1);
    out.push("", mark + shownLanguage(fence.language), ...fence.lines, mark);
    fence = undefined;
  };
  for (const line of markdown.split("\n")) {
    const found = FENCE.exec(line);
    if (fence) {
      const isEnd = found?.[1]!.startsWith(fence.mark) && !found[2] && !found[3]!.trim();
      if (isEnd) close();
      else fence.lines.push(line);
    } else if (found) fence = { mark: found[1]!, lines: [], language: found[2]! };
    else out.push(inert(line));
  }
  close();
  return out.join("\n");
}

/** A plugin may run code by the name of its language; of these, none is known to. */
function shownLanguage(language: string): string {
  return LANGUAGES.has(language.toLowerCase()) ? language : "";
}

function inert(line: string): string {
  return line
    .replace(INNER_FENCE, (_, before: string, mark: string, language: string) => before + mark + shownLanguage(language.trim()))
    .replace(/<(?=[a-zA-Z/!?])/g, `<${APART}`)
    .replace(/!(?=\[)/g, `!${APART}`)
    .replace(/(`+)(?=[ \t]*\$?=)/g, `$1${APART}`);
}

/**
 * Where the blocks that can no longer change end: what stands before may be rendered, what stands behind is still being
 * written. `from` is where an earlier call ended.
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
      // A line that goes on with a list, or is indented, belongs to what stands before it.
      const goesOn = /^\s/.test(line) || (isList && LIST.test(line)) || (stop < 0 && line.length < 3);
      if (!goesOn) {
        end = at;
        start = at;
        isList = false;
      }
    }
    if (stop < 0) break;
    const found = FENCE.exec(line);
    if (mark !== undefined) {
      if (found?.[1]!.startsWith(mark) && !found[2]) mark = undefined;
    } else if (found) mark = found[1];
    isList ||= LIST.test(line);
    isBlank = mark === undefined && !line.trim();
    at = stop + 1;
  }
  return end;
}
