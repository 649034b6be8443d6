// Starting turns, and other requests.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  QUICK, all, clientOf, cut, done, positions, refusal, scripted, status, stopTime, stream, token, until,
} from "./scripted_server.mjs";

test("start is retried with the same key, and its response is the stream", async (t) => {
  const server = await scripted(t, cut, status(503), stream(token(1) + done(2)));
  const turn = await clientOf(server, { key: () => "tw_k" }).start({
    message: "Hi", sessionId: "mine", onBusy: "interrupt", onDisconnect: { grace: 3 }, parentTurnId: "",
  });
  assert.deepEqual([turn.id, turn.sessionId, turn.position], ["t", "s", 0]);
  assert.deepEqual(positions(await all(turn.events())), [1, 2]);
  assert.equal(turn.position, 2);
  assert.equal(server.requests.length, 3);
  const keys = new Set(server.requests.map(({ headers }) => headers["idempotency-key"]));
  assert.equal(keys.size, 1);
  assert.ok([...keys][0].length >= 32);
  assert.equal(server.requests[2].headers.authorization, "Bearer tw_k");
  assert.deepEqual(JSON.parse(server.requests[2].body), {
    message: "Hi", session_id: "mine", on_busy: "interrupt", on_disconnect: { grace: 3 }, parent_turn_id: "",
  });
});

test("two starts with one key are one turn", async (t) => {
  const server = await scripted(t, stream(done(1)));
  const client = clientOf(server);
  for (const idempotencyKey of [undefined, undefined, "mine"]) await client.start({ message: "Hi", idempotencyKey });
  const keys = server.requests.map(({ headers }) => headers["idempotency-key"]);
  assert.equal(new Set(keys).size, 3);
  assert.equal(keys[2], "mine");
});

test("refused start is not retried", async (t) => {
  const server = await scripted(t, status(422, refusal("agent_not_found")));
  await assert.rejects(clientOf(server).start({ message: "Hi", agent: "nobody" }), { status: 422, code: "agent_not_found" });
  assert.equal(server.requests.length, 1);
});

test("aborting a start ends the retries, not an open stream", async (t) => {
  const server = await scripted(t, stream(token(1) + done(2)), cut);
  const stop = new AbortController();
  const client = clientOf(server, { retry: { first: 60_000, most: 60_000 } });
  const turn = await client.start({ message: "Hi", signal: stop.signal });
  const starting = client.start({ message: "Hi", signal: stop.signal });
  await until(() => client.connection === "offline");
  stop.abort(new Error("enough"));
  await assert.rejects(starting, /enough/);
  assert.deepEqual(positions(await all(turn.events())), [1, 2]);
});

test("enqueue starts a turn once and reads nothing", async (t) => {
  const server = await scripted(t, cut, status(202, { turn_id: "t" }));
  const { turn_id } = await clientOf(server).enqueue({ sessionId: "s", message: "Hi", agent: "a" });
  assert.equal(turn_id, "t");
  const [first, second] = server.requests;
  assert.equal(first.headers["idempotency-key"], second.headers["idempotency-key"]);
  assert.deepEqual([second.url, second.body], ["/v1/sessions/s/turns", '{"message":"Hi","agent":"a"}']);
});

test("unread or left stream of a start is closed", async (t) => {
  const server = await scripted(t, stream(token(1), "hang"));
  const client = clientOf(server);
  const isClosed = (index) => () => server.requests[index]?.request.socket.destroyed;
  const stop = new AbortController();
  const reading = all((await client.start({ message: "Hi" })).events({ signal: stop.signal }));
  await until(() => server.requests.length === 1);
  stop.abort(new Error("enough"));
  await assert.rejects(reading, /enough/);
  await until(isClosed(0));
  const events = (await client.start({ message: "Hi" })).events();
  await events.next();
  void events.next();
  await events.return();
  await until(isClosed(1));
  await clientOf(server, { retry: { heartbeat: 100 } }).start({ message: "Hi" });
  await until(isClosed(2)); // Unread.
});

test("second reader of a started turn opens its own stream", async (t) => {
  const server = await scripted(t, stream(token(1) + done(2)));
  const client = clientOf(server);
  client.onConnection(() => assert.fail("nothing has broken"));
  const turn = await client.start({ message: "Hi" });
  const [first, second] = await Promise.all([all(turn.events()), all(turn.events())]);
  assert.deepEqual(first, second);
  assert.deepEqual(server.requests.map(({ url }) => url), ["/chat/stream", "/v1/turns/t/events"]);
});

test("delete whose response was lost succeeds on 404", async (t) => {
  const server = await scripted(t, cut, status(404, refusal("session_not_found")));
  await clientOf(server).sessions.delete("a/b");
  assert.equal(server.requests[1].url, "/v1/sessions/a%2Fb");
  await assert.rejects(clientOf(server).sessions.delete("x"), { code: "session_not_found" });
});

test("requests that are not safe to repeat are sent once", async (t) => {
  const server = await scripted(t, cut);
  const client = clientOf(server);
  await assert.rejects(client.request("POST", "/v1/anything", {}), { code: "network" });
  await assert.rejects(client.sessions.create({ title: "New" }), { code: "network" });
  await assert.rejects(client.documents.upload(new Blob(["text"]), undefined, { name: "a.md" }), { code: "network" });
  assert.equal(server.requests.length, 3);
});

test("aborted request throws the signal's reason", async (t) => {
  const server = await scripted(t, () => {});
  const stop = new AbortController();
  const upload = clientOf(server).documents.upload(new Blob(["x"]), undefined, { name: "a.md", signal: stop.signal });
  await until(() => server.requests.length);
  stop.abort(new Error("enough"));
  await assert.rejects(upload, /^Error: enough$/);
});

test("upload reports its progress in browsers", async (t) => {
  const requests = [];
  globalThis.XMLHttpRequest = class {
    upload = {};
    headers = {};
    open = (method, url) => Object.assign(this, { method, url });
    setRequestHeader = (name, value) => (this.headers[name] = value);
    send = (form) => requests.push(Object.assign(this, { form }));
    abort = () => (this.onabort(), this.onloadend());
    answer = (status, body) => (Object.assign(this, { status, responseText: body }).onload(), this.onloadend());
  };
  t.after(() => delete globalThis.XMLHttpRequest);
  const { documents } = clientOf({ url: "http://nowhere" }, { key: "tw_k", credentials: "include" });
  const heard = [];
  const file = new File(["text"], "a.md");
  const stop = new AbortController();
  const [done, refused, broken, foreign] = [1, 2, 3, 4].map(() => documents.upload(file, (fraction) => heard.push(fraction)));
  const stopped = documents.upload(file, () => {}, { name: "b.md", signal: stop.signal });
  requests[0].upload.onprogress({ lengthComputable: true, loaded: 1, total: 4 });
  requests[0].upload.onprogress({ lengthComputable: false });
  requests[0].answer(201, '{"id":"d"}');
  requests[1].answer(413, JSON.stringify(refusal("body_too_large")));
  requests[2].onerror();
  requests[3].answer(200, "<html>");
  stop.abort(new Error("enough"));
  assert.deepEqual([await done, heard], [{ id: "d" }, [0.25]]);
  await assert.rejects(refused, { status: 413, code: "body_too_large", retryable: false });
  await assert.rejects(broken, { status: 0, code: "network" });
  await assert.rejects(foreign, { code: "not_turnwire" });
  await assert.rejects(stopped, /enough/);
  const [{ url, method, headers, withCredentials, form }] = requests;
  assert.deepEqual([method, url, withCredentials, headers.Authorization], ["POST", "http://nowhere/v1/documents", true, "Bearer tw_k"]);
  assert.deepEqual([form.get("file").name, requests[4].form.get("file").name], ["a.md", "b.md"]);
});

test("silent upload has no timeout, other requests do", async (t) => {
  const slow = (request, response) => setTimeout(() => status(201, { id: "d" })(request, response), 120);
  const server = await scripted(t, slow);
  const client = clientOf(server, { retry: { heartbeat: 10, attempts: 1 } });
  assert.deepEqual(await client.documents.upload(new File(["x"], "a.md")), { id: "d" });
  await assert.rejects(client.budget(), { code: "network", message: /silent/ });
});

test("slow response does not time out", async (t) => {
  let opened;
  const server = await scripted(t, (request, response) => {
    response.writeHead(200, { "Content-Type": "application/json" });
    response.flushHeaders();
    opened = response;
  });
  const time = stopTime(t);
  const waits = () => time.started((ms) => ms === 1_000);
  const asking = clientOf(server, { retry: { heartbeat: 400, attempts: 1 } }).agents();
  await until(() => waits() === 2); // For the headers, and for the body.
  for (const byte of Buffer.from('{"agents":["Zürich"]}')) {
    const before = waits();
    opened.write(Buffer.of(byte));
    await until(() => waits() > before);
    time.pass(600);
  }
  opened.end();
  assert.deepEqual(await asking, ["Zürich"]);
});

test("hanging or foreign response is a retryable error", async (t) => {
  const server = await scripted(t, () => {}, status(200, undefined));
  const time = stopTime(t);
  const asking = clientOf(server, { retry: { heartbeat: 200, attempts: 2 } }).budget();
  asking.catch(() => {}); // It may be rejected before it is awaited.
  await until(() => server.requests.length === 1);
  time.pass(500);
  await until(() => time.started((ms) => ms <= QUICK.most) === 1);
  time.pass(QUICK.most);
  await assert.rejects(asking, { code: "not_turnwire", retryable: true });
  assert.equal(server.requests.length, 2);
});

test("decisions and searches use the routes' field names", async (t) => {
  const server = await scripted(t, status(200, {}));
  const client = clientOf({ url: `${server.url}/mounted/` });
  await client.decide("t/1", "c 1", { approved: false, reason: "no" });
  await client.sessions.list({ search: "a&b", limit: 3 });
  await client.documents.get("d", { start: 1, end: 5 });
  assert.deepEqual(server.requests.map(({ method, url, body }) => [method, url, body]), [
    ["POST", "/mounted/v1/turns/t%2F1/approvals/c%201", '{"approved":false,"reason":"no"}'],
    ["GET", "/mounted/v1/sessions?search=a%26b&limit=3", ""],
    ["GET", "/mounted/v1/documents/d?start=1&end=5", ""],
  ]);
});
