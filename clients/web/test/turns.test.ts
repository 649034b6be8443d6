import assert from "node:assert/strict";
import { test } from "node:test";
import { visiblePath } from "../src/branches.ts";
import type { Entry } from "../src/entries.ts";
import { detailsOf } from "../src/inspector/details.ts";
import { turnCost } from "../src/inspector/prices.ts";
import { timingOf } from "../src/inspector/timing.ts";
import { EMPTY_VIEW, type TurnView } from "../../js/src/index.ts";
import { argumentLines, period, headingIn, provenance, stepsSummary } from "../src/format.ts";

const entry = (key: string, parent: string | null): Entry => ({ key, turnId: key, parent, view: EMPTY_VIEW }) as Entry;
const keys = (entries: Entry[], chosen: [string, string][] = []) =>
  visiblePath(entries, new Map(chosen)).map(({ key }) => key);

test("visible path is the newest branch unless another was chosen", () => {
  const entries = [entry("a", null), entry("b", "a"), entry("c", "b"), entry("b2", "a")];
  assert.deepEqual(keys(entries), ["a", "b2"]);
  assert.deepEqual(keys(entries, [["a", "b"]]), ["a", "b", "c"]);
});

test("joined turn is not on the path, and the turns after it are", () => {
  const joined = { ...entry("b", "a"), view: { ...EMPTY_VIEW, outcome: "joined" } } as Entry;
  assert.deepEqual(keys([entry("a", null), joined, entry("c", "b")]), ["a", "c"]);
});

test("message may have a parent without an id", () => {
  const sent = { ...entry("k1", null), turnId: null };
  assert.deepEqual(keys([sent, { ...entry("k2", "k1"), turnId: null }]), ["k1", "k2"]);
});

test("turn with an unknown parent is a root", () => {
  assert.deepEqual(keys([entry("a", "gone"), entry("b", "a")]), ["a", "b"]);
});

const at = (position: number, time: number, event: object) => ({ position, epoch: 1, at: 1000 + time, event }) as never;

test("timing has phases, steps and gaps", () => {
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
  assert.deepEqual(
    timing.steps.map(({ name, kind, from, to, first, last, isOpen, isBad }) => [name, kind, from, to, first, last, isOpen, isBad]),
    [["look", "tool", 10, 1510, 3, 4, false, true]],
  );
  assert.deepEqual(timing.gaps, [{ from: 10, to: 1510 }]);
  assert.deepEqual(
    timing.phases.map((phase) => phase.kind),
    ["queued", "working", "answering"],
  );
});

const crew = { agent_path: ["crew"] };
const SUPERVISED = [
  at(1, 0, { type: "session" }),
  at(2, 0, { type: "message", content: "When does it leave?" }),
  at(3, 100, { type: "reasoning", content: "The crew " }),
  at(4, 600, { type: "reasoning", content: "knows." }),
  at(5, 700, { type: "usage", model: "big", input_tokens: 1000, cached_input_tokens: 500, output_tokens: 100 }),
  at(6, 700, { type: "tool_call", call_id: "c1", tool: "ask_crew", args: { question: "When?" } }),
  at(7, 900, { type: "reasoning", content: "A table.", ...crew }),
  at(8, 1000, { type: "tool_call", call_id: "c2", tool: "timetable", args: {}, ...crew }),
  at(9, 1400, { type: "tool_result", call_id: "c2", tool: "timetable", success: true, result: "09:00", ...crew }),
  at(10, 1900, { type: "token", content: "At nine.", ...crew }),
  at(11, 2000, { type: "usage", model: "small", output_tokens: 5, ...crew }),
  at(12, 2100, { type: "tool_result", call_id: "c1", tool: "ask_crew", success: true, result: "At nine." }),
  at(13, 2500, { type: "reasoning", content: "Good." }),
  at(14, 3000, { type: "token", content: "It leaves at nine." }),
  at(15, 3100, { type: "done", outcome: "completed" }),
];

test("model calls, reasoning and sub-agents are a tree", () => {
  const { steps } = timingOf(SUPERVISED, null, 1050);
  // The same log has the same tree in tests/reporting/test_timeline.py.
  assert.deepEqual(
    steps.map(({ depth, kind, name, from, to }) => [depth, kind, name, from, to]),
    [
      [0, "model", "big", 50, 700],
      [1, "reasoning", "reasoning", 100, 600],
      [0, "tool", "ask_crew", 700, 2100],
      [1, "agent", "crew", 700, 2100],
      [2, "reasoning", "reasoning", 900, 900],
      [2, "tool", "timetable", 1000, 1400],
      [2, "model", "small", 1400, 2000],
      [0, "reasoning", "reasoning", 2500, 2500],
    ],
  );
  assert.ok(steps.every(({ isOpen, isBad, isVoid }) => !isOpen && !isBad && !isVoid));
});

test("details of a step have its input and output", () => {
  const { steps } = timingOf(SUPERVISED, null);
  const details = (index: number) => detailsOf(steps[index]!, SUPERVISED);
  assert.deepEqual(details(0), {
    input: [["Message", "When does it leave?"]],
    output: [
      ["Reasoning", "The crew knows."],
      ["Call of ask_crew", { question: "When?" }],
    ],
  });
  assert.deepEqual(details(2), { input: [["Arguments", { question: "When?" }]], output: [["Result", "At nine."]] });
  assert.deepEqual(details(3), {
    input: [["Arguments of ask_crew", { question: "When?" }]],
    output: [["Text", "At nine."]],
  });
  assert.deepEqual(details(6), { input: [["Result of timetable", "09:00"]], output: [["Text", "At nine."]] });
  assert.deepEqual(details(7), { input: [], output: [["Reasoning", "Good."]] });
});

test("restart voids the steps after it", () => {
  const { steps } = timingOf(
    [
      at(1, 0, { type: "session" }),
      at(2, 0, { type: "message" }),
      at(3, 10, { type: "tool_call", call_id: "c1", tool: "kept" }),
      at(4, 20, { type: "tool_result", call_id: "c1", tool: "kept", success: true }),
      at(5, 30, { type: "tool_call", call_id: "c2", tool: "lost" }),
      at(6, 90, { type: "restart", from_position: 4, reason: "worker_lost" }),
    ],
    null,
  );
  assert.deepEqual(
    steps.map(({ name, isVoid, to }) => [name, isVoid, to]),
    [
      ["kept", false, 20],
      ["lost", true, 90],
    ],
  );
});

test("cost counts priced models and names the others", () => {
  const { steps } = timingOf(SUPERVISED, null);
  const prices = { big: { input: 2, output: 8, cached_input: 0.5 } };
  assert.equal(turnCost(steps, {}), null);
  assert.deepEqual(turnCost(steps, prices), { dollars: (500 * 2 + 500 * 0.5 + 100 * 8) / 1e6, unpriced: ["small"] });
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
