// The official ACP client for TypeScript. The program to start is in the arguments.
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
import { args, print, until, url as folder } from "./script_io.mjs";

const [program, ...options] = args;
const child = spawn(program, options, { stdio: ["pipe", "pipe", "inherit"] });
const texts = [];
const updates = [];
const app = acp.client({ name: "test" })
  .onNotification(acp.methods.client.session.update, ({ params: { update } }) => {
    updates.push(update.sessionUpdate);
    if (update.sessionUpdate === "agent_message_chunk") texts.push(update.content.text);
  })
  .onRequest(acp.methods.client.session.requestPermission, ({ params: { toolCall, options } }) => {
    print({ asked: toolCall.title, input: toolCall.rawInput, kinds: options.map((option) => option.kind) });
    return { outcome: { outcome: "selected", optionId: options[0].optionId } };
  });
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
const { agent } = acp.methods;

await app.connectWith(stream, async (connection) => {
  const { protocolVersion, agentCapabilities } = await connection.request(agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {},
  });
  print({ protocolVersion, load: agentCapabilities.loadSession });
  const { sessionId, modes } = await connection.request(agent.session.new, { cwd: folder, mcpServers: [] });
  print({ modes: modes.availableModes.map((mode) => mode.id) });
  const prompt = (text) => connection.request(agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  print({ ...(await prompt("Buy it")), text: texts.join("") });
  await connection.request(agent.session.setMode, { sessionId, modeId: "silent" });
  texts.length = 0;
  const stopping = prompt("Well?");
  await until(() => texts.length > 0);
  await connection.notify(agent.session.cancel, { sessionId });
  print(await stopping);
  texts.length = 0;
  updates.length = 0;
  await connection.request(agent.session.load, { sessionId, cwd: folder, mcpServers: [] });
  await until(() => texts.join("").endsWith("Well, "));
  print({ text: texts.join(""), first: updates[0] });
});
child.stdin.end();
