// Turns on a socket, on a network and a server that do as they are told.
import assert from "node:assert/strict";
import { test } from "node:test";
import { TurnwireClient, TurnwireSocket } from "@turnwire/client";
import { all, positions, until } from "./scripted.mjs";

/** What a script says on each socket that is opened, in order; the last one is for all that come after it. */
function scriptedSockets(...scripts) {
  const sockets = [];
  class Scripted {
    readyState = 0;
    said = [];
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
      this.said.push(message);
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

/** Answers what is asked with the events after the position. */
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

test("it opens with the first word, where the server is and with the key", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(3)], { key: "tw_k" });
  assert.equal(sockets.length, 0);
  const turn = await socket.start({ message: "Hi", sessionId: "mine" });
  assert.deepEqual(positions(await all(turn.events())), [1, 2, 3]);
  assert.deepEqual([turn.id, turn.sessionId, turn.position], ["t", "s", 3]);
  assert.deepEqual([sockets[0].url, sockets[0].protocols], ["ws://nowhere/base/v1/ws", ["turnwire", "turnwire.key.tw_k"]]);
  assert.equal(sockets[0].said[0].session_id, "mine");
});

test("after a drop each turn is followed after the last event that came, and what was not answered is said again", async (t) => {
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
  assert.deepEqual(sockets[1].said.map(({ type, after, epoch }) => [type, after, epoch]), [["cancel", undefined, undefined], ["follow", 2, 1]]);
});

test("what comes of an earlier following is not taken for the new one", async (t) => {
  let first = true;
  const script = (message, socket) => {
    if (!first) return serving(4)(message, socket);
    first = false;
    // An event is missing; what was under way before the new following was heard of comes nevertheless.
    socket.tell(accepted(message), event(1), event(3));
    setImmediate(() => socket.tell(event(4), event(5)));
  };
  const { socket, sockets } = socketOf(t, [script]);
  assert.deepEqual(positions(await all(socket.turn("t").events())), [1, 2, 3, 4]);
  assert.deepEqual(sockets[0].said.map(({ after }) => after), [0, 1]);
});

test("what a slow reader cannot keep is asked for again", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(10_000)]);
  const seen = [];
  for await (const { position } of socket.turn("t").events()) seen.push(position);
  assert.deepEqual(seen, Array.from({ length: 10_000 }, (_, index) => index + 1));
  assert.ok(sockets[0].said.length > 1);
});

test("two readers of a turn share it, each from its own place", async (t) => {
  const { socket } = socketOf(t, [serving(6)]);
  const [whole, rest] = await Promise.all([all(socket.turn("t").events()), all(socket.turn("t").events({ after: 4 }))]);
  assert.deepEqual([positions(whole), positions(rest)], [[1, 2, 3, 4, 5, 6], [5, 6]]);
});

test("a socket that is silent for too long is given up", async (t) => {
  const silent = (message, socket) => socket.tell(accepted(message), event(1));
  const { socket, sockets } = socketOf(t, [silent, serving(2)], { retry: { heartbeat: 200 } });
  assert.deepEqual(positions(await all(socket.turn("t").events())), [1, 2]);
  assert.equal(sockets.length, 2);
});

test("who is told when to come back does so then, and does not count as offline", async (t) => {
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

test("a key that is no longer valid is final", async (t) => {
  const revoked = (message, socket) => (socket.tell(accepted(message), event(1)), socket.drop(1008));
  const { socket, sockets } = socketOf(t, [revoked]);
  await assert.rejects(all(socket.turn("t").events()), { status: 401, code: "unauthorized" });
  assert.equal(sockets.length, 1);
});

test("why a socket does not open is found out by a plain request", async (t) => {
  const answers = [new Response("", { status: 502 }), new Response('{"error":{"code":"unauthorized","message":"no"}}', { status: 401 })];
  const { socket, sockets } = socketOf(t, ["refused"], { fetch: async () => answers.shift() });
  await assert.rejects(socket.start({ message: "Hi" }), { status: 401, code: "unauthorized" });
  assert.equal(sockets.length, 2);
});

test("a message that is too large fails, and the turns go on", async (t) => {
  const script = (message, socket) => (message.type === "start" ? socket.drop(1009) : serving(3)(message, socket));
  const { socket } = socketOf(t, [script, serving(3)]);
  const reading = all(socket.turn("t").events());
  await assert.rejects(socket.start({ message: "much" }), { status: 413, code: "body_too_large" });
  assert.deepEqual(positions(await reading), [1, 2, 3]);
});

test("what may go well later is said again, on the same socket; a turn that broke is followed again", async (t) => {
  const codes = ["too_many_turns", "shutting_down"];
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
  assert.equal(new Set(sockets[0].said.slice(0, 3).map(({ idempotency_key: key }) => key)).size, 1);
});

test("a reader that leaves is unfollowed, and a signal ends it with its reason", async (t) => {
  const open = (message, socket) => socket.tell(accepted(message), event(1));
  const { socket, sockets } = socketOf(t, [open]);
  for await (const item of socket.turn("t").events()) if (item.position === 1) break;
  assert.equal(sockets[0].said.at(-1).type, "unfollow");
  const stop = new AbortController();
  const reading = all(socket.turn("t").events({ signal: stop.signal }));
  await until(() => sockets[0].said.length === 3);
  stop.abort(new Error("enough"));
  await assert.rejects(reading, /enough/);
  const starting = socket.start({ message: "Hi", signal: AbortSignal.abort(new Error("before")) });
  await assert.rejects(starting, /before/);
});

test("nothing is opened again when nobody needs it", async (t) => {
  const { socket, sockets } = socketOf(t, [serving(2)]);
  await all(socket.turn("t").events());
  sockets[0].drop(1006);
  await new Promise((later) => setTimeout(later, 30));
  assert.equal(sockets.length, 1);
  await all(socket.turn("t").events());
  assert.equal(sockets.length, 2);
});
