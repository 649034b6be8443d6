// Turns on a scripted socket.
import assert from "node:assert/strict";
import { test } from "node:test";
import { TurnwireClient, TurnwireSocket } from "@turnwire/client";
import { all, positions, until } from "./scripted_server.mjs";

/** Runs one script per opened socket, in order; the last one is for all later sockets. */
function scriptedSockets(...scripts) {
  const sockets = [];
  class Scripted {
    readyState = 0;
    sent = [];
    constructor(url, protocols) {
      Object.assign(this, { url, protocols });
      const script = scripts[Math.min(sockets.length, scripts.length - 1)];
      sockets.push(this);
      setImmediate(() => script === "refused" ? this.drop(1006) : this.open(script));
    }
    open(script) {
      this.script = script;
      this.readyState = 1;
      this.onopen?.();
    }
    send(text) {
      const message = JSON.parse(text);
      this.sent.push(message);
      setImmediate(() => this.script?.(message, this));
    }
    tell(...messages) {
      for (const message of messages) this.onmessage?.({ data: JSON.stringify(message) });
    }
    drop(code) {
      this.readyState = 3;
      this.onclose?.({ code });
    }
    close() {
      this.readyState = 3;
    }
  }
  return { sockets, Scripted };
}

const accepted = ({ id }, more = {}) => ({ type: "accepted", id, turn_id: "t", session_id: "s", phase: "running", last_position: 0, ...more });
const event = (position, type = "token") => ({ type: "event", turn_id: "t", position, epoch: 1, event: { type, content: "x" } });
const ending = (position) => ({ ...event(position), event: { type: "done", outcome: "completed" } });
const failure = (code) => ({ type: "error", error: { code, message: `no: ${code}` } });

/** Responds to a follow request with the events after its position. */
const serving = (last) => (message, socket) => {
  if (message.type !== "start" && message.type !== "follow") return;
  socket.tell(accepted(message));
  for (let position = (message.after ?? 0) + 1; position < last; position++) socket.tell(event(position));
  socket.tell(ending(last));
};

function socketOf(t, scripts, { retry, ...options } = {}) {
  const { sockets, Scripted } = scriptedSockets(...scripts);
  const client = new TurnwireClient({ url: "http://nowhere/base", retry: { first: 2, most: 10, ...retry }, ...options });
  const socket = new TurnwireSocket(client, { WebSocket: Scripted });
  t.after(() => socket.close());
  return { sockets, client, socket };
}

test("socket opens with the first request, with the key", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(3)], { key: "tw_k" });
  assert.equal(sockets.length, 0);
  const turn = await socket.start({ message: "Hi", sessionId: "mine" });
  assert.deepEqual(positions(await all(turn.events())), [1, 2, 3]);
  assert.deepEqual([turn.id, turn.sessionId, turn.position], ["t", "s", 3]);
  assert.deepEqual([sockets[0].url, sockets[0].protocols], ["ws://nowhere/base/v1/ws", ["turnwire", "turnwire.key.tw_k"]]);
  assert.equal(sockets[0].sent[0].session_id, "mine");
});

test("dropped socket is reopened, turns resume and unanswered requests are sent again", async (t) => {
  const first = (message, socket) => {
    if (message.type !== "follow") return;
    socket.tell(accepted(message), event(1), event(2));
    socket.drop(1006);
  };
  const second = (message, socket) => (message.type === "cancel" ? socket.tell(accepted(message)) : serving(4)(message, socket));
  const { socket, sockets } = socketOf(t, [first, second]);
  const cancelling = socket.cancel("t");
  assert.deepEqual(positions(await all(socket.turn("t").events())), [1, 2, 3, 4]);
  await cancelling;
  assert.deepEqual(sockets[1].sent.map(({ type, after, epoch }) => [type, after, epoch]), [["cancel", undefined, undefined], ["follow", 2, 1]]);
});

test("events of an earlier follow request are ignored", async (t) => {
  let first = true;
  const script = (message, socket) => {
    if (!first) return serving(4)(message, socket);
    first = false;
    // An event is missing; events of the first follow request still arrive.
    socket.tell(accepted(message), event(1), event(3));
    setImmediate(() => socket.tell(event(4), event(5)));
  };
  const { socket, sockets } = socketOf(t, [script]);
  assert.deepEqual(positions(await all(socket.turn("t").events())), [1, 2, 3, 4]);
  assert.deepEqual(sockets[0].sent.map(({ after }) => after), [0, 1]);
});

test("events that a slow reader dropped are fetched again", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(10_000)]);
  const seen = [];
  for await (const { position } of socket.turn("t").events()) seen.push(position);
  assert.deepEqual(seen, Array.from({ length: 10_000 }, (_, index) => index + 1));
  assert.ok(sockets[0].sent.length > 1);
});

test("two readers of a turn have their own positions", async (t) => {
  const { socket } = socketOf(t, [serving(6)]);
  const [whole, rest] = await Promise.all([all(socket.turn("t").events()), all(socket.turn("t").events({ after: 4 }))]);
  assert.deepEqual([positions(whole), positions(rest)], [[1, 2, 3, 4, 5, 6], [5, 6]]);
});

test("silent socket is closed", async (t) => {
  const silent = (message, socket) => socket.tell(accepted(message), event(1));
  const { socket, sockets } = socketOf(t, [silent, serving(2)], { retry: { heartbeat: 200 } });
  assert.deepEqual(positions(await all(socket.turn("t").events())), [1, 2]);
  assert.equal(sockets.length, 2);
});

test("reconnect message delays the reconnection and is not offline", async (t) => {
  const leaving = (message, socket) => {
    socket.tell(accepted(message), event(1), { type: "reconnect", retry_ms: 50 });
    socket.drop(1012);
  };
  const { socket, client } = socketOf(t, [leaving, serving(2)]);
  client.onConnection(() => assert.fail("nothing has broken"));
  const began = performance.now();
  await all(socket.turn("t").events());
  assert.ok(performance.now() - began >= 45);
});

test("close code 1008 is a final error", async (t) => {
  const revoked = (message, socket) => (socket.tell(accepted(message), event(1)), socket.drop(1008));
  const { socket, sockets } = socketOf(t, [revoked]);
  await assert.rejects(all(socket.turn("t").events()), { status: 401, code: "unauthorized" });
  assert.equal(sockets.length, 1);
});

test("failed socket is explained by a plain request", async (t) => {
  const answers = [new Response("", { status: 502 }), new Response('{"error":{"code":"unauthorized","message":"no"}}', { status: 401 })];
  const { socket, sockets } = socketOf(t, ["refused"], { fetch: async () => answers.shift() });
  await assert.rejects(socket.start({ message: "Hi" }), { status: 401, code: "unauthorized" });
  assert.equal(sockets.length, 2);
});

test("too large message fails and turns continue", async (t) => {
  const script = (message, socket) => (message.type === "start" ? socket.drop(1009) : serving(3)(message, socket));
  const { socket } = socketOf(t, [script, serving(3)]);
  const reading = all(socket.turn("t").events());
  await assert.rejects(socket.start({ message: "much" }), { status: 413, code: "body_too_large" });
  assert.deepEqual(positions(await reading), [1, 2, 3]);
});

test("retryable errors are sent again on the same socket", async (t) => {
  const codes = ["too_many_turns", "shutting_down", "store_away"];
  let broken = false;
  const script = (message, socket) => {
    const code = message.type === "start" ? codes.shift() : undefined;
    if (code) return socket.tell({ ...failure(code), id: message.id });
    if (broken) return serving(3)(message, socket);
    broken = true;
    socket.tell(accepted(message), event(1), { ...failure("internal_error"), id: null, turn_id: "t" });
  };
  const { socket, sockets } = socketOf(t, [script]);
  const turn = await socket.start({ message: "Hi" });
  assert.deepEqual(positions(await all(turn.events())), [1, 2, 3]);
  assert.equal(sockets.length, 1);
  assert.equal(new Set(sockets[0].sent.slice(0, 4).map(({ idempotency_key: key }) => key)).size, 1);
});

test("leaving reader is unfollowed, and an aborted one throws the reason", async (t) => {
  const open = (message, socket) => socket.tell(accepted(message), event(1));
  const { socket, sockets } = socketOf(t, [open]);
  for await (const item of socket.turn("t").events()) if (item.position === 1) break;
  assert.equal(sockets[0].sent.at(-1).type, "unfollow");
  const stop = new AbortController();
  const reading = all(socket.turn("t").events({ signal: stop.signal }));
  await until(() => sockets[0].sent.length === 3);
  stop.abort(new Error("enough"));
  await assert.rejects(reading, /enough/);
  const starting = socket.start({ message: "Hi", signal: AbortSignal.abort(new Error("before")) });
  await assert.rejects(starting, /before/);
});

test("socket without readers is not reopened", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(2)]);
  await all(socket.turn("t").events());
  sockets[0].drop(1006);
  await new Promise((later) => setTimeout(later, 30));
  assert.equal(sockets.length, 1);
  await all(socket.turn("t").events());
  assert.equal(sockets.length, 2);
});

test("result that somebody else has sent is no error", async (t) => {
  const call = { type: "tool_call", call_id: "c1", tool: "locate", args: {}, runs_on: "client" };
  const refused = [];
  const script = (message, socket) => {
    if (message.type === "follow") socket.tell(accepted(message), { ...event(1), event: call });
    if (message.type !== "tool_result") return;
    socket.tell({ ...failure("turn_not_waiting"), id: message.id }, ending(2));
    refused.push(message.call_id);
  };
  const fetch = async () => new Response('{"phase":"waiting","state":{}}');
  const { socket } = socketOf(t, [script], { fetch });
  const reported = t.mock.method(console, "error", () => {});
  await all(socket.turn("t", { tools: [{ name: "locate", run: () => "Bern" }] }).events());
  await new Promise(setImmediate);
  assert.deepEqual([refused, reported.mock.callCount()], [["c1"], 0]);
});

test("closed socket opens again with the next request", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(2)]);
  const first = socket.start({ message: "Hi" });
  socket.close();
  const second = socket.start({ message: "Hi" });
  await assert.rejects(first, { code: "closed" });
  assert.deepEqual(positions(await all((await second).events())), [1, 2]);
  assert.equal(sockets.length, 2);
});

test("reset of another reader does not void a turn that was read to its end", async (t) => {
  const script = (message, socket) => {
    if (message.type === "start") return serving(2)(message, socket);
    if (message.type === "follow") socket.tell(accepted(message), { type: "reset", turn_id: "t" }, event(1), ending(2));
  };
  const { socket } = socketOf(t, [script]);
  const turn = await socket.start({ message: "Hi" });
  assert.deepEqual(positions(await all(socket.turn("t").events({ after: "2.9" }))), ["reset", 1, 2]);
  assert.deepEqual(positions(await all(turn.events())), [1, 2]);
});

test("turn that nobody reads is left, and can be read later", async (t) => {
  const open = (message, socket) => {
    if (message.type === "start") socket.tell(accepted(message), event(1));
    else serving(2)(message, socket);
  };
  const { socket, sockets } = socketOf(t, [open], { retry: { heartbeat: 50 } });
  const turn = await socket.start({ message: "Hi" });
  await until(() => sockets[0].sent.at(-1).type === "unfollow");
  assert.deepEqual(positions(await all(turn.events())), [1, 2]);
});

test("control of a socket is passed on with its fields", async (t) => {
  const state = { text: "Gone." };
  const gap = { type: "gap", turn_id: "t", after: 0, first_kept: 3, state };
  const script = (message, socket) => socket.tell(accepted(message), gap, ending(3));
  const { socket } = socketOf(t, [script]);
  const heard = [];
  const events = socket.turn("t").events({ onControl: (control) => heard.push(control) });
  assert.deepEqual(positions(await all(events)), ["gap", 3]);
  assert.deepEqual(heard, [{ type: "gap", after: 0, first_kept: 3, state }]);
});
