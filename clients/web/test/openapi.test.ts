import assert from "node:assert/strict";
import test from "node:test";
import { exampleOf, fieldsOf, groupsOf, type OpenApi, requestOf } from "../src/openapi.ts";

const DOCUMENT: OpenApi = {
  info: { title: "Turnwire", version: "1" },
  paths: {
    "/chat": {
      post: {
        tags: ["chat"],
        summary: "Send a message",
        parameters: [{ name: "Idempotency-Key", in: "header" }],
        requestBody: { content: { "application/json": { schema: { $ref: "#/components/schemas/Body" } } } },
        responses: { "200": { description: "The answer" } },
      },
    },
    "/v1/turns/{id}/events": {
      get: {
        tags: ["turns"],
        parameters: [
          { name: "id", in: "path", required: true },
          { name: "after", in: "query" },
        ],
        responses: { "200": {} },
      },
    },
    "/v1/ws": { get: { tags: ["turns"], responses: { "101": {} } } },
  },
  components: {
    schemas: {
      Body: {
        type: "object",
        required: ["message"],
        properties: {
          message: { type: "string", description: "The text." },
          files: { type: "array", items: { $ref: "#/components/schemas/File" } },
          mode: { anyOf: [{ type: "string" }, { type: "null" }] },
        },
      },
      File: { type: "object", properties: { name: { type: "string" } } },
    },
  },
};

test("operations are grouped by tag and filtered by method, path and summary", () => {
  const tags = (filter: string) => groupsOf(DOCUMENT, filter).map((group) => [group.tag, group.operations.length]);
  assert.deepEqual(tags(""), [["chat", 1], ["turns", 2]]);
  assert.deepEqual(tags("send a"), [["chat", 1]]);
  assert.deepEqual(tags("get /v1/ws"), [["turns", 1]]);
  assert.equal(groupsOf(DOCUMENT, "ws")[0]!.operations[0]!.isSocket, true);
});

test("fields of a body name nested objects, types and what is required", () => {
  const body = groupsOf(DOCUMENT, "/chat")[0]!.operations[0]!.body!;
  assert.deepEqual(
    fieldsOf(body, DOCUMENT).map((field) => [field.name, field.type, field.isRequired]),
    [["message", "string", true], ["files", "object[]", false], ["files[].name", "string", false], ["mode", "string | null", false]],
  );
  assert.deepEqual(exampleOf(body, DOCUMENT), { message: "Hello" });
});

test("a request has its parameters in the path, the query and the headers", () => {
  const events = groupsOf(DOCUMENT, "events")[0]!.operations[0]!;
  assert.equal(requestOf(events, { id: "a b", after: "3" }, "").path, "/v1/turns/a%20b/events?after=3");
  const { path, init } = requestOf(groupsOf(DOCUMENT, "/chat")[0]!.operations[0]!, { "Idempotency-Key": "k" }, "{}");
  assert.deepEqual([path, init.method, init.body], ["/chat", "POST", "{}"]);
  assert.equal((init.headers as Headers).get("idempotency-key"), "k");
});
