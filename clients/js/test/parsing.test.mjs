// Parsing bytes into events, and folding events into views.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  applyEvent, EMPTY_VIEW, foldTurn, sliceText, splitStreamedText, TextSplitter, TurnwireClient, viewOfSnapshot,
} from "@turnwire/client";
import { all, bytes, done, frame, OPEN, token } from "./scripted_server.mjs";

const logged = (position, event) => ({ turnId: "t", position, epoch: 1, id: `${position}.1`, event });
const log = (...events) => events.map((event, index) => logged(index + 1, event));
const say = (content) => ({ type: "token", content });
const OPENING = [
  { type: "session", session_id: "s", turn_id: "t", agent: "a" },
  { type: "message", content: "Well?", by: "anna", channel: "http" },
];

/** Returns all items of a stream in these chunks. */
async function followed(pieces) {
  const body = new ReadableStream({ start: (out) => (pieces.forEach((piece) => out.enqueue(piece)), out.close()) });
  const fetch = async () => new Response(body, { headers: OPEN });
  return all(new TurnwireClient({ url: "http://nowhere", fetch, retry: { streamAttempts: 1 } }).turn("t").events());
}

test("frames are parsed from any chunks", async () => {
  const text = "Zürich\u2028🌞\r\u0085 \\n";
  const raw = `${frame(1, say(text))}: hb\n\n: comment\nretry: 7\n\n${token(2)}event: x\n${frame(3, say("\r"))}${done(4)}`;
  const whole = bytes(raw);
  const expected = await followed([whole]);
  assert.deepEqual(expected.map(({ id }) => id), ["1.1", "2.1", "3.1", "4.1"]);
  assert.equal(expected[0].event.content, text);
  assert.deepEqual(await followed(Array.from(whole, (_, at) => whole.subarray(at, at + 1))), expected);
  for (let at = 1; at < whole.length; at++) {
    assert.deepEqual(await followed([whole.subarray(0, at), whole.subarray(at)]), expected, `cut at ${at}`);
  }
  assert.deepEqual(await followed([bytes(raw.replaceAll("\n", "\r\n"))]), expected);
});

const LINE = { event: "status", timestamp: "2026-11-16T01:52:05.125Z", type: "status", text: "Zürich" };
const TRAILER = { citations: [], tools_used: [], outcome: "completed" };
const TEXT = bytes(`${JSON.stringify(LINE)}\n\n\n${JSON.stringify(LINE)}\n\x1d\nGrüezi 🌞\n\n{"\x1e${JSON.stringify(TRAILER)}`);

function gathered(pieces) {
  const parsed = { events: [], text: "", trailer: undefined };
  for (const piece of pieces) {
    if (piece.kind === "event") parsed.events.push(piece.event);
    if (piece.kind === "text") parsed.text += piece.text;
    if (piece.kind === "trailer") parsed.trailer = piece.trailer;
  }
  return parsed;
}

test("streamed text is parsed from any chunks", async () => {
  const expected = { events: [LINE, LINE], text: '\nGrüezi 🌞\n\n{"', trailer: TRAILER };
  for (let at = 0; at <= TEXT.length; at++) {
    const splitter = new TextSplitter();
    const pieces = [...splitter.feed(TEXT.subarray(0, at)), ...splitter.feed(TEXT.subarray(at)), splitter.end()];
    assert.deepEqual(gathered(pieces), expected, `cut at ${at}`);
    assert.equal(splitter.offset, TEXT.length - 2, "empty lines before the answer are not counted");
  }
  const parts = Array.from(TEXT, (_, at) => TEXT.subarray(at, at + 1));
  assert.deepEqual(gathered(await all(splitStreamedText(ReadableStream.from(parts)))), expected);
  assert.deepEqual(gathered(await all(splitStreamedText((async function* () { yield* parts; })()))), expected);
});

test("text stream may be empty and must be complete", async () => {
  const split = (text) => all(splitStreamedText(ReadableStream.from([bytes(text)])));
  assert.deepEqual(await split("\x1d\x1e{}"), [{ kind: "trailer", trailer: {} }]);
  assert.deepEqual(await split("\x1d\ufeffBOM\x1e{}"), [{ kind: "text", text: "\ufeffBOM" }, { kind: "trailer", trailer: {} }]);
  for (const broken of ["", "{}\n", "\x1dHalf", '\x1dAll.\x1e{"citations":[', "\x1dAll.\x1e", "not JSON\n\x1d\x1e{}"]) {
    await assert.rejects(split(broken), { code: "broken_stream", retryable: true }, JSON.stringify(broken));
  }
});

test("view has the whole turn", () => {
  const request = { type: "approval_request", call_id: "c2", tool: "pay", args: { amount: 40 }, reason: "it costs" };
  const events = [
    ...OPENING,
    { type: "status", text: "looking" },
    { type: "reasoning", content: "Hm." },
    { type: "search", step_id: "s1", phase: "started", tool: "find", query: "sun" },
    { type: "search", step_id: "s1", phase: "finished", tool: "find", query: "sun", hits: [{ index: 1, document_id: "d" }], ms: 3 },
    { type: "review", step_id: "v1", iteration: 1, verdict: "approved", kept: [1] },
    { type: "tool_call", call_id: "c1", tool: "weather", args: { city: "Zürich" } },
    { type: "tool_progress", call_id: "c1", text: "half", fraction: 0.5 },
    { ...say("to myself"), agent_path: ["helper"] },
    say("🌞 "),
    { type: "tool_result", call_id: "c1", tool: "weather", success: false, result: "no such city", ms: 12 },
    { type: "citation", index: 1, document_id: "d" },
    request,
  ];
  const view = foldTurn(log(...events));
  assert.deepEqual([view.phase, view.text, view.reasoning, view.status], ["waiting", "🌞 ", "Hm.", "looking"]);
  assert.deepEqual([view.turnId, view.sessionId, view.agent, view.message, view.by], ["t", "s", "a", "Well?", "anna"]);
  assert.deepEqual(view.approvals, [request]);
  assert.deepEqual(view.toolsUsed, ["find", "weather"]);
  const [search, review, weather, pay] = view.steps;
  assert.deepEqual([search.state, search.query, search.hits.length, search.ms], ["succeeded", "sun", 1, 3]);
  assert.deepEqual([review.name, review.review.kept], ["approved", [1]]);
  assert.deepEqual([weather.state, weather.result, weather.progress, weather.fraction, weather.ms], ["failed", "no such city", "half", 0.5, 12]);
  assert.deepEqual([pay.state, pay.reason, pay.args, pay.answerOffset], ["waiting", "it costs", { amount: 40 }, 2]);
  const after = foldTurn(
    [
      { type: "approval_response", call_id: "c2", approved: true, by: "anna" },
      { type: "usage", input_tokens: 5 },
      { type: "usage", input_tokens: 2, output_tokens: 1 },
      { type: "response", content: "🌞 ", citations: [], tools_used: [], mode: "synthesis", timings: { total_ms: 9 } },
      { type: "done", outcome: "completed", session_id: "s", turn_id: "t" },
    ].map((event, index) => logged(events.length + 1 + index, event)),
    view,
  );
  assert.deepEqual([after.phase, after.outcome, after.mode, after.approvals, after.timings], ["ended", "completed", "synthesis", [], { total_ms: 9 }]);
  assert.deepEqual(after.usage, { input_tokens: 7, output_tokens: 1 });
  assert.deepEqual(after.steps[3].decision, { approved: true, by: "anna" });
  assert.equal(after.steps[0], view.steps[0], "what did not change is the same object");
  assert.equal(view.phase, "waiting", "and the view before is as it was");
});

test("message that entered a turn stays at its place over a restart, and is the same in a snapshot", () => {
  const input = { type: "input", content: "And more", by: "ann", channel: "http", turn_id: "t2" };
  const lost = foldTurn(log(...OPENING, say("One "), input, say("two"), { type: "restart", from_position: 3, reason: "lost" }));
  const view = { content: "And more", by: "ann", turnId: "t2", position: 4, answerOffset: 4 };
  assert.deepEqual([lost.text, lost.inputs], ["One ", [view]]);
  const inputs = [{ content: "And more", turn_id: "t2", by: "ann", position: 4, answer_offset: 4 }];
  assert.deepEqual(viewOfSnapshot({ phase: "running", position: 6, state: { text: "One ", inputs } }).inputs, [view]);
  const joined = { turn_id: "t1", position: 4 };
  const done = foldTurn(log(...OPENING, { type: "done", outcome: "joined", session_id: "s", turn_id: "t2", joined }));
  assert.deepEqual([done.outcome, done.joined], ["joined", joined]);
});

test("restart drops void events and keeps their usage", () => {
  const before = foldTurn(log(...OPENING, say("One "), { type: "tool_call", call_id: "c", tool: "x", args: {} }));
  const lost = foldTurn(
    [
      logged(5, { type: "tool_result", call_id: "c", tool: "x", success: true }),
      logged(6, { type: "usage", output_tokens: 3 }),
      logged(7, say("two ")),
      logged(8, { type: "citation", index: 1, document_id: "d" }),
    ],
    before,
  );
  const again = foldTurn([logged(9, { type: "restart", from_position: 4, reason: "lost" }), logged(10, say("2 "))], lost);
  assert.deepEqual([again.text, again.citations, again.position, again.usage], ["One 2 ", [], 10, { output_tokens: 3 }]);
  assert.equal(again.steps[0].state, "running");
  const twice = foldTurn([logged(11, { type: "restart", from_position: 3, reason: "lost" }), logged(12, say("!"))], again);
  assert.deepEqual([twice.text, twice.steps, twice.usage], ["One !", [], { output_tokens: 3 }]);
  assert.equal(foldTurn([logged(9, say("!"))], lost).text, "One two !", "a view can be gone on from twice");
});

test("restart keeps the questions, and the turn waits while one is open", () => {
  const ask = (id, path) => ({ type: "question", id, prompt: "Which?", ...path });
  const reply = { type: "reply", question_id: "q1", value: "one" };
  const restart = { type: "restart", from_position: 4, reason: "lost" };
  const events = [...OPENING, say("One "), ask("q0"), ask("q1", { agent_path: ["helper"] }), reply];
  const view = foldTurn(log(...events, restart));
  assert.deepEqual(view.questions.map(({ id, state }) => [id, state]), [["q0", "open"], ["q1", "answered"]]);
  assert.equal(view.phase, "waiting");
  const again = foldTurn([logged(8, ask("q1", { agent_path: ["helper"] }))], view);
  assert.deepEqual(again.questions.map(({ id }) => id), ["q0", "q1"]);
});

test("later message of a fork has its own files only", () => {
  const files = [{ media_type: "image/png", digest: "d" }];
  const [session, message] = OPENING;
  const forked = log(session, { ...message, attachments: files }, say("One "), { ...message, content: "And now?" });
  assert.equal(foldTurn(forked).attachments, undefined);
  const state = { message: "Well?", attachments: files, follow_ups: [{ content: "And now?", position: 4, answer_offset: 4 }] };
  const snapshot = { turn_id: "t", session_id: "s", agent: "a", phase: "running", position: 4, state };
  assert.equal(viewOfSnapshot(snapshot).attachments, undefined);
  state.follow_ups[0].attachments = files;
  assert.deepEqual([viewOfSnapshot(snapshot).message, viewOfSnapshot(snapshot).attachments], ["And now?", files]);
});

test("snapshot view continues, and is stale after a restart before it", () => {
  const state = {
    turn_id: "t", message: "Well?", text: "One ", position: 4,
    steps: [{ kind: "tool", id: "c", name: "pay", position: 4, answer_offset: 4, args: { amount: 1 }, state: "waiting", reason: "it costs" }],
  };
  const snapshot = { turn_id: "t", session_id: "s", agent: "a", phase: "waiting", position: 4, state };
  const view = viewOfSnapshot(snapshot);
  assert.deepEqual([view.phase, view.text, view.position, view.message], ["waiting", "One ", 4, "Well?"]);
  assert.deepEqual(view.approvals, [{ type: "approval_request", call_id: "c", tool: "pay", args: { amount: 1 }, reason: "it costs" }]);
  const next = foldTurn([logged(4, say("old")), logged(5, say("two"))], view);
  assert.equal(next.text, "One two");
  assert.equal(applyEvent(next, logged(6, { type: "restart", from_position: 4, reason: "" })).text, "One ");
  const stale = applyEvent(next, logged(6, { type: "restart", from_position: 3, reason: "" }));
  assert.deepEqual([stale.isStale, stale.text, stale.position, stale.message], [true, "", 6, "Well?"]);
});

test("reset empties a view and gap fills it", () => {
  const view = foldTurn(log(...OPENING, say("One ")));
  assert.equal(applyEvent(view, { control: "reset" }), EMPTY_VIEW);
  const state = { turn_id: "t", text: "All.", outcome: "completed", position: 9 };
  const filled = applyEvent(EMPTY_VIEW, { control: "gap", after: 0, firstKept: 9, state });
  assert.deepEqual([filled.text, filled.position, filled.phase], ["All.", 8, "ended"]);
  const ended = applyEvent(filled, logged(9, { type: "done", outcome: "completed", session_id: "s", turn_id: "t" }));
  assert.deepEqual([ended.text, ended.position, ended.outcome], ["All.", 9, "completed"]);
});

test("names from the server reach no prototype", () => {
  const odd = ["__proto__", "constructor", "toString"];
  const events = odd.flatMap((name) => [
    { type: "tool_call", call_id: name, tool: name, args: JSON.parse('{"__proto__": 1}') },
    { type: "tool_result", call_id: name, tool: name, success: true },
    { type: name },
  ]);
  const view = foldTurn(log(...OPENING, ...events));
  assert.deepEqual(view.toolsUsed, odd);
  assert.deepEqual(view.steps.map(({ id, state }) => [id, state]), odd.map((name) => [name, "succeeded"]));
  assert.equal({}.polluted, undefined);
  assert.equal(Object.getPrototypeOf(view.steps[0]), Object.prototype);
});

test("sliceText counts code points", () => {
  assert.equal(sliceText("a🌞b🌞c", 1, 3), "🌞b");
  assert.equal(sliceText("a🌞b", 2), "b");
  assert.equal(sliceText("ab", 5, 9), "");
});

test("folding reads each event of a long answer equally often", () => {
  let reads = 0;
  const counted = (event) => new Proxy(event, { get: (target, name) => (reads++, target[name]) });
  const readsOf = (count) => {
    reads = 0;
    const events = log(...OPENING, ...Array.from({ length: count }, () => counted(say("word "))));
    assert.equal(foldTurn(events).text.length, 5 * count);
    return reads;
  };
  assert.equal(readsOf(20_000), 20 * readsOf(1_000));
});
