// Following a stream across network and server failures.
import assert from "node:assert/strict";
import { test } from "node:test";
import { TurnwireError } from "@turnwire/client";
import {
  QUICK, all, clientOf, cut, done, frame, positions, refusal, scripted, status, stopTime, stream, token, until,
} from "./scripted_server.mjs";

test("cut stream resumes after the last event", async (t) => {
  const server = await scripted(
    t,
    stream(token(1) + token(2) + token(3).slice(0, 12), "cut"),
    cut,
    stream(token(2) + token(3) + token(4)),
    stream(done(5)),
  );
  const items = await all(clientOf(server).turn("t").events());
  assert.deepEqual(positions(items), [1, 2, 3, 4, 5]);
  assert.deepEqual(
    server.requests.map(({ headers }) => headers["last-event-id"]),
    [undefined, "2.1", "2.1", "4.1"],
  );
  assert.deepEqual(items[0], { turnId: "t", position: 1, epoch: 1, id: "1.1", event: { type: "token", content: "1 " } });
});

test("missing event is requested again", async (t) => {
  const server = await scripted(t, stream(token(1) + token(3) + done(4)), stream(token(2) + token(3) + done(4)));
  assert.deepEqual(positions(await all(clientOf(server).turn("t").events())), [1, 2, 3, 4]);
  assert.equal(server.requests[1].headers["last-event-id"], "1.1");
});

test("data that is not JSON is a lost connection", async (t) => {
  const server = await scripted(t, stream(`${token(1)}id: 2.1\ndata: {"type":"tok\n\n`, "hang"), stream(done(2)));
  assert.deepEqual(positions(await all(clientOf(server).turn("t").events())), [1, 2]);
});

test("204 ends the stream", async (t) => {
  const server = await scripted(t, status(204));
  assert.deepEqual(await all(clientOf(server).turn("t").events({ after: "7.2" })), []);
  assert.equal(server.requests[0].headers["last-event-id"], "7.2");
});

test("reset is yielded and the log starts over", async (t) => {
  const heard = [];
  const reset = 'data: {"type":"reset"}\n\n';
  const server = await scripted(t, stream(reset + token(1), "cut"), stream(token(2) + done(3)));
  const events = clientOf(server).turn("t").events({ after: 9, onControl: (control) => heard.push(control.type) });
  assert.deepEqual(positions(await all(events)), ["reset", 1, 2, 3]);
  assert.equal(server.requests[1].headers["last-event-id"], "1.1");
  assert.deepEqual(heard, ["reset"]);
});

test("gap is yielded with the state and the stream continues after it", async (t) => {
  const gap = 'data: {"type":"gap","after":0,"first_kept":8,"state":{"text":"Gone."}}\n\n';
  const server = await scripted(t, stream(gap, "cut"), stream(done(8)));
  const items = await all(clientOf(server).turn("t").events());
  assert.deepEqual(items[0], { control: "gap", turnId: "t", after: 0, firstKept: 8, state: { text: "Gone." } });
  assert.deepEqual(positions(items), ["gap", 8]);
  assert.equal(server.requests[1].headers["last-event-id"], "7");
});

test("reconnect control delays the reconnection and is not offline", async (t) => {
  const farewell = 'retry: 60\ndata: {"type":"reconnect","retry_ms":60}\n\n';
  const server = await scripted(t, stream(token(1) + farewell), stream(done(2)));
  const client = clientOf(server);
  const states = [];
  client.onConnection((state) => states.push(state));
  await all(client.turn("t").events());
  assert.ok(server.requests[1].at - server.requests[0].at >= 55);
  assert.deepEqual(states, []);
});

test("connection is cut after 2.5 silent heartbeats", async (t) => {
  const server = await scripted(t, stream(`: stream open\n\n${token(1)}`, "hang"), stream(done(2)));
  const time = stopTime(t);
  const events = clientOf(server, { retry: { heartbeat: 40 } }).turn("t").events();
  assert.equal((await events.next()).value.position, 1);
  const begun = time.started((ms) => ms === 100);
  const waiting = events.next();
  await until(() => time.started((ms) => ms === 100) > begun);
  time.pass(99);
  await new Promise(setImmediate);
  assert.equal(time.started((ms) => ms <= QUICK.most), 0);
  time.pass(1);
  await until(() => time.started((ms) => ms <= QUICK.most) === 1); // It waits before it reconnects.
  time.pass(QUICK.most);
  assert.equal((await waiting).value.position, 2);
  assert.equal(server.requests.length, 2);
});

test("slow reader does not time out", async (t) => {
  const server = await scripted(t, stream(token(1) + token(2), "hang"), stream(done(3)));
  const time = stopTime(t);
  const events = clientOf(server, { retry: { heartbeat: 200 } }).turn("t").events();
  await events.next();
  time.pass(60_000);
  assert.equal((await events.next()).value.position, 2);
  assert.equal(server.requests.length, 1);
  await events.return();
});

test("heartbeats keep a connection open", async (t) => {
  let opened;
  const server = await scripted(t, (request, response) => {
    stream(token(1), "hang")(request, response);
    opened = response;
  });
  const time = stopTime(t);
  const waits = () => time.started((ms) => ms === 1_000);
  const events = clientOf(server, { retry: { heartbeat: 400 } }).turn("t").events();
  await events.next();
  const rest = all(events);
  for (let beats = 0; beats < 5; beats++) {
    const before = waits();
    opened.write(": hb\n\n");
    await until(() => waits() > before);
    time.pass(600);
  }
  opened.end(done(2));
  assert.deepEqual(positions(await rest), [2]);
  assert.equal(server.requests.length, 1);
});

test("4xx response is thrown with its code and message", async (t) => {
  const server = await scripted(t, status(404, refusal("turn_not_found")));
  const error = await all(clientOf(server).turn("t").events()).catch((thrown) => thrown);
  assert.ok(error instanceof TurnwireError);
  assert.deepEqual([error.status, error.code, error.message, error.retryable], [404, "turn_not_found", "no: turn_not_found", false]);
  assert.equal(server.requests.length, 1);
});

test("5xx, 408, 425, 429 and foreign pages are retried", async (t) => {
  const portal = (request, response) => response.end("<html>Log in to our wireless network</html>");
  const server = await scripted(
    t, status(503, refusal("shutting_down")), status(502), status(408), status(425), status(429), portal, stream(done(1)),
  );
  assert.deepEqual(positions(await all(clientOf(server).turn("t").events())), [1]);
  assert.equal(server.requests.length, 7);
});

test("Retry-After is respected up to a maximum", async (t) => {
  const later = await scripted(t, status(429, refusal("too_many_streams"), { "Retry-After": "0.1" }), stream(done(1)));
  await all(clientOf(later).turn("t").events());
  assert.ok(later.requests[1].at - later.requests[0].at >= 95);
  const tomorrow = await scripted(t, status(429, refusal("budget_spent"), { "Retry-After": "7200" }));
  const error = await all(clientOf(tomorrow).turn("t").events()).catch((thrown) => thrown);
  assert.deepEqual([error.code, error.retryAfter, tomorrow.requests.length], ["budget_spent", 7_200_000, 1]);
  const away = await scripted(t, status(503, "", { "Retry-After": "7200" }));
  const client = clientOf(away);
  const heard = new Promise((hear) => client.onConnection((state, { retryIn }) => hear([state, retryIn])));
  const events = client.turn("t").events();
  void events.next();
  assert.deepEqual(await heard, ["offline", 60_000]); // A server that is away may be back earlier.
  await events.return();
});

test("connection listener reports offline and online", async (t) => {
  const server = await scripted(t, stream(token(1), "cut"), cut, stream(done(2)));
  const client = clientOf(server);
  const states = [];
  client.onConnection((state, { attempt }) => states.push([state, attempt]));
  await all(client.turn("t").events());
  assert.deepEqual(states, [["offline", 1], ["connecting", 1], ["offline", 2], ["connecting", 2], ["online", 0]]);
  assert.equal(client.connection, "online");
});

test("connection state is shared by all streams", async (t) => {
  const server = await scripted(t, ...Array(6).fill(cut), stream(done(1)));
  const client = clientOf(server);
  const states = [];
  client.onConnection((state) => states.push(state));
  await Promise.all(["a", "b", "c"].map((id) => all(client.turn(id).events())));
  assert.deepEqual([states[0], states.at(-1)], ["offline", "online"]);
  assert.ok(states.every((state, index) => state === "offline" || state !== states[index - 1]));
});

test("state stays offline after a given-up request until the server is reached", async (t) => {
  const server = await scripted(t, cut, cut, status(200, { agents: [] }));
  const client = clientOf(server, { retry: { attempts: 2 } });
  await assert.rejects(client.agents(), { code: "network", status: 0, retryable: true });
  assert.equal(client.connection, "offline");
  await client.agents();
  assert.equal(client.connection, "online");
});

test("retry happens at once when the network returns or the page is visible", async (t) => {
  const target = new EventTarget();
  const page = Object.assign(new EventTarget(), { visibilityState: "hidden" });
  Object.assign(globalThis, {
    addEventListener: target.addEventListener.bind(target),
    removeEventListener: target.removeEventListener.bind(target),
    document: page,
  });
  t.after(() => ["addEventListener", "removeEventListener", "document"].forEach((name) => delete globalThis[name]));
  const server = await scripted(t, cut, cut, stream(done(1)));
  const client = clientOf(server, { retry: { first: 60_000, most: 60_000 } });
  const reading = all(client.turn("t").events());
  const offline = (times) => until(() => client.connection === "offline" && server.requests.length === times);
  await offline(1);
  target.dispatchEvent(new Event("online"));
  await offline(2);
  page.dispatchEvent(new Event("visibilitychange"));
  await new Promise(setImmediate);
  assert.equal(client.connection, "offline", "while it is hidden nobody looks");
  page.visibilityState = "visible";
  page.dispatchEvent(new Event("visibilitychange"));
  assert.deepEqual(positions(await reading), [1]);
});

test("connection that was silent during sleep is reopened on wake", async (t) => {
  const target = new EventTarget();
  Object.assign(globalThis, {
    addEventListener: target.addEventListener.bind(target),
    removeEventListener: target.removeEventListener.bind(target),
  });
  t.after(() => ["addEventListener", "removeEventListener"].forEach((name) => delete globalThis[name]));
  const server = await scripted(t, stream(token(1) + token(2), "hang"), stream(done(3)));
  const client = clientOf(server, { retry: { heartbeat: 60_000 } });
  const events = client.turn("t").events();
  await events.next();
  const later = (ms) => t.mock.method(Date, "now", () => performance.timeOrigin + performance.now() + ms);
  later(600_000);
  target.dispatchEvent(new Event("online")); // No read is pending, so the silence does not count.
  assert.equal((await events.next()).value.position, 2);
  const waiting = events.next();
  target.dispatchEvent(new Event("online")); // The read has just begun.
  await new Promise(setImmediate);
  assert.equal(client.connection, "online");
  later(1_200_000);
  target.dispatchEvent(new Event("online"));
  assert.equal((await waiting).value.position, 3);
});

test("leaving a waiting stream closes it", async (t) => {
  const server = await scripted(t, stream(token(1), "hang"));
  const events = clientOf(server).turn("t").events();
  await events.next();
  const waiting = events.next();
  assert.deepEqual(await events.return(), { done: true, value: undefined });
  assert.deepEqual(await waiting, { done: true, value: undefined });
  await until(() => server.requests[0].request.destroyed || server.requests[0].request.socket.destroyed);
});

test("aborted stream throws the signal's reason at any time", async (t) => {
  const server = await scripted(t, stream(token(1), "hang"), cut);
  const client = clientOf(server, { retry: { first: 60_000, most: 60_000 } });
  const why = new Error("enough");
  for (const [begun, when] of [[() => server.requests.length === 1, "waits"], [() => client.connection === "offline", "rests"]]) {
    const stop = new AbortController();
    const reading = all(client.turn("t").events({ signal: stop.signal }));
    await until(begun);
    stop.abort(why);
    await assert.rejects(reading, why, when);
  }
  await assert.rejects(all(client.turn("t").events({ signal: AbortSignal.abort(why) })), why);
  assert.equal(client.connection, "online");
});

test("stream is given up after streamAttempts", async (t) => {
  const server = await scripted(t, stream(token(1), "cut"), cut);
  const events = clientOf(server, { retry: { streamAttempts: 3 } }).turn("t").events();
  await assert.rejects(all(events), { code: "network" });
  assert.equal(server.requests.length, 3);
});

test("attempts are counted from the last event", async (t) => {
  const server = await scripted(t, ...[1, 2, 3, 4].map((position) => stream(token(position), "cut")), stream(done(5)));
  const events = clientOf(server, { retry: { streamAttempts: 2 } }).turn("t").events();
  assert.deepEqual(positions(await all(events)), [1, 2, 3, 4, 5]);
});

test("throwing listener does not break the stream", async (t) => {
  const thrown = [];
  const catcher = (error) => thrown.push(error.message);
  process.prependOnceListener("uncaughtException", catcher);
  const others = process.listeners("uncaughtException").filter((listener) => listener !== catcher);
  others.forEach((listener) => process.off("uncaughtException", listener));
  t.after(() => others.forEach((listener) => process.on("uncaughtException", listener)));
  const server = await scripted(t, stream('data: {"type":"reset"}\n\n' + done(1)));
  const onControl = () => {
    throw new Error("my own bug");
  };
  assert.deepEqual(positions(await all(clientOf(server).turn("t").events({ onControl }))), ["reset", 1]);
  await until(() => thrown.length);
  assert.deepEqual(thrown, ["my own bug"]);
});

test("unknown event types and controls are ignored", async (t) => {
  const server = await scripted(t, stream('data: {"type":"weather"}\n\n' + frame(1, { type: "__proto__" }) + done(2)));
  assert.deepEqual(positions(await all(clientOf(server).turn("t").events())), [1, 2]);
});

test("session stream resumes by its own ids", async (t) => {
  const event = (id) => `id: ${id}\ndata: {"type":"token","content":"x"}\n\n`;
  const server = await scripted(
    t,
    stream(event("a:b:1") + event("a:b:2"), "cut"),
    stream(event("a:b:2") + event("__proto__:1"), "cut"),
    stream('data: {"type":"reset"}\n\n' + event("a:b:1"), "hang"),
  );
  const items = [];
  for await (const item of clientOf(server).followSession("my session")) {
    items.push(item.id ?? item.control);
    if (items.length === 5) break;
  }
  assert.deepEqual(items, ["a:b:1", "a:b:2", "__proto__:1", "reset", "a:b:1"]);
  assert.equal(server.requests[0].url, "/v1/sessions/my%20session/events");
  assert.deepEqual(server.requests.map(({ headers }) => headers["last-event-id"]), [undefined, "a:b:2", "__proto__:1"]);
});

test("refusal shows that the server is reached again", async (t) => {
  const server = await scripted(t, cut, status(404, refusal("turn_not_found")));
  const client = clientOf(server, { retry: { attempts: 1 } });
  await assert.rejects(client.agents(), { code: "network" });
  assert.equal(client.connection, "offline");
  await assert.rejects(client.snapshot("t"), { status: 404 });
  assert.equal(client.connection, "online");
});

test("quiet session that is cut again and again is not given up", async (t) => {
  const event = 'id: a:1\ndata: {"type":"token","content":"x"}\n\n';
  let now = Date.now();
  t.mock.method(Date, "now", () => (now += 60_000));
  const server = await scripted(t, ...Array(5).fill(stream(": stream open\n\n", "cut")), stream(event, "hang"));
  const events = clientOf(server, { retry: { streamAttempts: 2 } }).followSession("s");
  assert.equal((await events.next()).value.id, "a:1");
  await events.return();
});
