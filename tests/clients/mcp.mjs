// The official MCP client for TypeScript, over streamable HTTP.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { args, print, url } from "./script_io.mjs";

const [scene] = args;
const client = new Client({ name: "test", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`)));

const lines = [];
const call = (name, input) =>
  client.callTool({ name, arguments: input }, undefined, { onprogress: ({ message }) => lines.push(message) });

if (scene === "tools") {
  const { tools } = await client.listTools();
  print({ tools: tools.map((tool) => tool.name).sort() });
  const asked = await call("ask_default", { message: "How is it?" });
  print({ text: asked.content[0].text, status: asked.structuredContent.status, lines });
  const again = await call("get_turn", { turn_id: asked.structuredContent.turn_id });
  print({ text: again.content[0].text });
} else if (scene === "approval") {
  const asked = await call("ask_default", { message: "Buy it" });
  const { status, turn_id, approvals } = asked.structuredContent;
  print({ text: asked.content[0].text, status });
  await call("decide", { turn_id, call_id: approvals[0].call_id, approve: true });
  print({ text: (await call("get_turn", { turn_id })).content[0].text });
} else if (scene === "wait") {
  const asked = await call("ask_default", { message: "Slow", wait: 0 });
  print({ status: asked.structuredContent.status, id: asked.structuredContent.turn_id });
  const rest = await call("get_turn", { turn_id: asked.structuredContent.turn_id });
  print({ text: rest.content[0].text });
  const stopped = await call("stop_turn", { turn_id: asked.structuredContent.turn_id });
  print({ status: stopped.structuredContent.status });
}
await client.close();
