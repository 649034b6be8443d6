import assert from "node:assert/strict";
import { test } from "node:test";
import { BlockSplitter, type Piece } from "../src/text/blocks.ts";
import { citationOrder, lexBlocks, renderBlocks, renumbered } from "../src/text/markdown.ts";
import { bracketed, unitOffset } from "../src/text/offsets.ts";

const ANSWER = `# A title

A paragraph with **bold** [1] and
a second line.

- one

  with a paragraph
- two
  1. nested

\`\`\`python
x = "[1]"

y = 2
\`\`\`

| a | b |
| - | - |
| 1 | 2 |

> quoted

[r]: https://example.org/page "A page"

A [reference][r] with $a\\,b$ and costs of $5 and $6, in \\(x_1\\).

$$
a \\! b
- c
$$

\\[
\\sum_i i
\\]

The end. [2, 3]\r\nReally.`;

test("growing answer renders like the whole answer", () => {
  const splitter = new BlockSplitter();
  let settled = "";
  let open = "";
  for (let end = 1; end <= ANSWER.length; end++) {
    const growth = splitter.grow(ANSWER.slice(0, end), true);
    assert.equal(growth.isRestarted, false);
    for (const piece of growth.settled) settled += renderBlocks(piece.blocks, true);
    open = renderBlocks(growth.open.blocks, true);
  }
  assert.equal(settled + open, renderBlocks(lexBlocks(ANSWER.replace("\r\n", "\n"), true), true));
});

test("only the last block is open", () => {
  const splitter = new BlockSplitter();
  splitter.grow("one\n\ntwo\n\nthree");
  const { settled, open } = splitter.grow("one\n\ntwo\n\nthree\n\nfour");
  assert.deepEqual(settled.map((piece) => piece.blocks[0]!.raw.trim()).filter(Boolean), ["three"]);
  assert.deepEqual(
    open.blocks.map((block) => block.raw),
    ["four"],
  );
});

test("long list is cut before its last item, with every item once and in order", () => {
  const items = Array.from({ length: 60 }, (_, index) => `${index + 1}. item ${index} ${"and more ".repeat(6)}`);
  const text = `Before:\n\n${items.join("\n")}\n\nAfter.`;
  const splitter = new BlockSplitter();
  const lines: string[] = [];
  let longest = 0;
  for (let end = 1; end <= text.length; end += 7) {
    const { settled, open } = splitter.grow(text.slice(0, end));
    for (const piece of settled)
      if (piece.blocks[0]!.type === "list") lines.push(...listed(piece), String(piece.isJoined));
    longest = Math.max(longest, open.blocks[0]?.raw.length ?? 0);
  }
  assert.ok(longest < 1700);
  assert.deepEqual(
    lines.filter((line) => line.startsWith("item")).map((line) => line.split(" ")[1]),
    items.map((_, index) => String(index)),
  );
  assert.deepEqual([...new Set(lines.filter((line) => !line.startsWith("item")))], ["false", "true"]);
});

const listed = (piece: Piece): string[] =>
  (piece.blocks[0] as { items: { text: string }[] }).items.map((item) => item.text);

test("replaced text restarts the splitter", () => {
  const splitter = new BlockSplitter();
  splitter.grow("one\n\ntwo");
  assert.equal(splitter.grow("other").isRestarted, true);
});

test("bracketed numbers are citations only with sources, and never in code or links", () => {
  const html = (text: string, hasCites: boolean) => renderBlocks(lexBlocks(text, hasCites), hasCites);
  assert.match(html("so it is [1, 12]", true), /data-cite="1".*data-cite="12"/);
  assert.doesNotMatch(html("so it is [1]", false), /data-cite/);
  assert.doesNotMatch(html("`a[1]` and [2](https://example.org)", true), /data-cite/);
});

test("unitOffset counts code points", () => {
  const text = "a😀b𝄞c";
  assert.equal(text.slice(unitOffset(text, 2), unitOffset(text, 3)), "b");
  assert.equal(text.slice(unitOffset(text, 3), unitOffset(text, 4)), "𝄞");
  assert.equal(unitOffset(text, 99), text.length);
});

test("brackets do not change the Markdown of a line", () => {
  const at = (text: string, quote: string) => bracketed(text, text.indexOf(quote), text.indexOf(quote) + quote.length);
  assert.equal(at("x\n- an item\ny", "- an item"), "x\n- ⸨an item⸩\ny");
  assert.equal(at("x\n## A heading\n", "## A heading\n"), "x\n## ⸨A heading⸩\n");
  assert.equal(at("in **the** middle", "**the**"), "in ⸨**the**⸩ middle");
  assert.equal(at("x\n```py\ncode\n```", "```py\ncode"), "x\n```py\n⸨code⸩\n```");
});

const rendered = (text: string): string => renderBlocks(lexBlocks(text, false), false).trim();

test("formulas keep their backslashes, and money is no formula", () => {
  assert.equal(rendered("$a\\,b\\!c$"), '<p><span data-maths="inline">a\\,b\\!c</span></p>');
  assert.equal(rendered("It is \\(x\\)."), '<p>It is <span data-maths="inline">x</span>.</p>');
  assert.equal(rendered("$$\na\n= b\n$$"), '<div data-maths="block">a\n= b</div>');
  assert.equal(rendered("\\[ a < b \\]"), '<div data-maths="block">a &#60; b</div>');
  for (const text of ["From $5 to $6.", "$HOME and $PATH", "`$x$`", "a $ b $ c"]) assert.ok(!rendered(text).includes("data-maths"), text);
});

test("link definitions are part of no other block", () => {
  const splitter = new BlockSplitter();
  const text = "[r]: https://example.org\n\nOne.\n\nTwo [r].\n\nThree.";
  let settled = "";
  for (let end = 1; end <= text.length; end++) {
    settled += splitter.grow(text.slice(0, end)).settled.map((piece) => renderBlocks(piece.blocks, false)).join("");
  }
  assert.equal(settled, '<p>One.</p>\n<p>Two <a href="https://example.org">r</a>.</p>\n');
});

test("citations are numbered by their first appearance, except in code", () => {
  const text = "Nine [9]. Four [4, 9]. `x[4]`\n\n```\ny[9]\n```\n";
  assert.deepEqual([...citationOrder(text)], [[9, 1], [4, 2]]);
  assert.equal(renumbered(text), "Nine [1]. Four [2, 1]. `x[4]`\n\n```\ny[9]\n```\n");
});

test("formula on its own lines ends the paragraph before it, and no other", () => {
  const html = rendered("Before:\n$$\na\n$$\n\nOne.\n\nTwo.\n$$\nb\n$$");
  assert.deepEqual(html.match(/<p>[^<]*|<div data-maths="block">[^<]*/g), [
    "<p>Before:",
    '<div data-maths="block">a',
    "<p>One.",
    "<p>Two.",
    '<div data-maths="block">b',
  ]);
});
