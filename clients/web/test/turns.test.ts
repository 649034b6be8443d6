import assert from "node:assert/strict";
import { test } from "node:test";
import { visiblePath } from "../src/branches.ts";
import type { Entry } from "../src/entries.ts";
import { timingOf } from "../src/inspector/timing.ts";
import { EMPTY_VIEW, type TurnView } from "../../js/src/index.ts";
import { argumentLines, period, headingIn, provenance, stepsSummary } from "../src/format.ts";

const entry = (key: string, parent: string | null): Entry => ({ key, turnId: key, parent }) as Entry;
const keys = (entries: Entry[], chosen: [string, string][] = []) =>
  visiblePath(entries, new Map(chosen)).map(({ key }) => key);

test("visible path is the newest branch unless another was chosen", () => {
  const entries = [entry("a", null), entry("b", "a"), entry("c", "b"), entry("b2", "a")];
  assert.deepEqual(keys(entries), ["a", "b2"]);
  assert.deepEqual(keys(entries, [["a", "b"]]), ["a", "b", "c"]);
});

test("message may have a parent without an id", () => {
  const sent = { ...entry("k1", null), turnId: null };
  assert.deepEqual(keys([sent, { ...entry("k2", "k1"), turnId: null }]), ["k1", "k2"]);
});

test("turn with an unknown parent is a root", () => {
  assert.deepEqual(keys([entry("a", "gone"), entry("b", "a")]), ["a", "b"]);
});

test("timing has phases, steps and gaps", () => {
  const at = (position: number, time: number, event: object) =>
    ({ position, epoch: 1, at: 1000 + time, event }) as never;
  const timing = timingOf(
    [
      at(1, 0, { type: "session" }),
      at(2, 0, { type: "message" }),
      at(3, 10, { type: "tool_call", call_id: "c", tool: "look" }),
      at(4, 1510, { type: "tool_result", call_id: "c", tool: "look", success: false }),
      at(5, 1520, { type: "token", content: "a" }),
      at(6, 1600, { type: "done", outcome: "completed" }),
    ],
    null,
  );
  assert.deepEqual([timing.total, timing.firstEvent, timing.firstToken], [1600, 10, 1520]);
  assert.deepEqual(timing.steps, [{ name: "look", kind: "tool", from: 10, to: 1510, isOpen: false, isBad: true }]);
  assert.deepEqual(timing.gaps, [{ from: 10, to: 1510 }]);
  assert.deepEqual(
    timing.phases.map((phase) => phase.kind),
    ["queued", "working", "answering"],
  );
});

test("period and heading texts", () => {
  const noon = new Date(2030, 4, 10, 12);
  assert.equal(period(new Date(2030, 4, 10, 1).toISOString(), noon), "Today");
  assert.equal(period(new Date(2030, 4, 9, 23).toISOString(), noon), "Yesterday");
  assert.equal(headingIn({ title: "Concepts", heading: "Concepts › One writer" }), "One writer");
});

test("provenance says who has written an answer", () => {
  const of = (view: Partial<TurnView>) => provenance({ ...EMPTY_VIEW, ...view });
  const cite = (index: number) => ({ type: "citation", index, document_id: "d" }) as const;
  const usedBy = (model: string) =>
    ({ ...EMPTY_VIEW.memory, log: [{ event: { type: "usage", model } }], count: 1 }) as TurnView["memory"];
  assert.equal(of({ mode: "extractive" }), "Quoted word for word, no model");
  assert.equal(of({ mode: "synthesis", memory: usedBy("qwen3"), citations: [cite(1), cite(4), cite(1)] }), "Written by qwen3 from 2 passages");
  assert.equal(of({ mode: "synthesis" }), "Written by a model");
  const status = "The model's server cannot be reached. These are the sentences that answer best.";
  assert.equal(of({ mode: "fallback", status }), "The model failed (The model's server cannot be reached); quoted instead");
  assert.equal(of({ mode: "fallback", status: "The model failed (KeyError)." }), "The model failed (KeyError); quoted instead");
  assert.equal(of({ mode: "fallback", modelError: "It is busy.", status }), "The model failed (It is busy); quoted instead");
  assert.equal(of({ mode: "direct", model: "qwen3" }), "Written by qwen3");
  assert.equal(of({ mode: "scripted" }), "Scripted demo, no model");
  assert.equal(of({}), "");
});

test("arguments are lines of names and values, and failed calls are counted", () => {
  const args = { city: "Oslo", days: 3, at: "09:45", number: "42", tags: ["a"], empty: "" };
  assert.deepEqual(argumentLines(args), ["city: Oslo", "days: 3", "at: 09:45", 'number: "42"', 'tags: [\n  "a"\n]', 'empty: ""']);
  const step = (state: string) => ({ kind: "tool", state }) as never;
  assert.equal(stepsSummary([step("failed"), step("succeeded")]), "2 tool calls, 1 failed");
});
