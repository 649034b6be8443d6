// A server with scripted responses: one per request, in order.
import { createServer } from "node:http";
import { TurnwireClient } from "@turnwire/client";

export const QUICK = { first: 2, most: 10 };
export const OPEN = { "Content-Type": "text/event-stream; charset=utf-8", "X-Turn-Id": "t", "X-Session-Id": "s" };
const encoder = new TextEncoder();
const realTimeout = setTimeout;
export const bytes = (text) => encoder.encode(text);

export const frame = (position, event, epoch = 1) => `id: ${position}.${epoch}\ndata: ${JSON.stringify(event)}\n\n`;
export const token = (position) => frame(position, { type: "token", content: `${position} ` });
export const done = (position) =>
  frame(position, { type: "done", outcome: "completed", session_id: "s", turn_id: "t" });

/** `answers` are functions of the request and the response; the last one answers all later requests. */
export async function scripted(t, ...answers) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const answer = answers[Math.min(requests.length, answers.length - 1)];
    requests.push({ method: request.method, url: request.url, headers: request.headers, body, at: Date.now(), request });
    answer(request, response);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

/** Returns an answer that streams these frames and then ends, is cut, or stays silent. */
export const stream = (text, then = "end") => (request, response) => {
  response.writeHead(200, OPEN);
  response.write(text);
  if (then === "end") response.end();
  if (then === "cut") realTimeout(() => response.destroy(), 5);
};
export const status = (code, body = "", headers = {}) => (request, response) => {
  response.writeHead(code, { "Content-Type": "application/json", ...headers });
  response.end(body && JSON.stringify(body));
};
export const cut = (request) => request.socket.destroy();
export const refusal = (code) => ({ error: { code, message: `no: ${code}` } });

export const clientOf = (server, options = {}) =>
  new TurnwireClient({ url: server.url, ...options, retry: { ...QUICK, ...options.retry } });

export async function all(iterator) {
  const items = [];
  for await (const item of iterator) items.push(item);
  return items;
}
export const positions = (items) => items.map((item) => item.position ?? item.control);

/** Waits until a condition holds. */
export async function until(holds) {
  for (let waited = 0; waited < 20_000; waited += 2) {
    if (holds()) return;
    await new Promise((later) => realTimeout(later, 2));
  }
  throw new Error(`waited too long for ${holds}`);
}

/** Stops the time of the client's timers: it passes with `pass` only. `started` counts the timers of a length. */
export function stopTime(t) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const lengths = [];
  const { setTimeout: stopped } = globalThis;
  globalThis.setTimeout = (act, ms, ...rest) => {
    lengths.push(ms);
    return stopped(act, ms, ...rest);
  };
  return {
    pass: (ms) => t.mock.timers.tick(ms),
    started: (isCounted) => lengths.filter(isCounted).length,
  };
}
