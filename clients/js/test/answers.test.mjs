// Results of the client's own tools, and replies to questions.
import assert from "node:assert/strict";
import { test } from "node:test";
import { TurnwireError, TurnwireSocket } from "@turnwire/client";
import { all, clientOf, done, frame, scripted, status, stream, until } from "./scripted_server.mjs";

const CALL = { type: "tool_call", call_id: "c1", tool: "locate", args: {}, runs_on: "client" };
const SNAPSHOT = { phase: "waiting", state: {} };

/** Answers requests by their path; keeps the bodies that were sent to each. */
async function serverOf(t, text) {
  const bodies = {};
  const server = await scripted(t, (request, response) => {
    const { url, method } = request;
    if (url.endsWith("/events")) return stream(text)(request, response);
    if (method === "POST") (bodies[url] ??= []).push(JSON.parse(server.requests.at(-1).body));
    status(200, SNAPSHOT)(request, response);
  });
  return { server, bodies };
}

test("error of a tool is sent to the model, also one of this client", async (t) => {
  const { server, bodies } = await serverOf(t, frame(1, CALL) + done(2));
  const run = () => {
    throw new TurnwireError(404, "document_not_found", "there is no such document");
  };
  await all(clientOf(server).turn("t", { tools: [{ name: "locate", run }] }).events());
  await until(() => bodies["/v1/turns/t/tool-results"]);
  assert.deepEqual(bodies["/v1/turns/t/tool-results"], [{ call_id: "c1", output: "there is no such document", is_error: true }]);
});
