// The official A2A client for JavaScript, by the agent's card.
import { ClientFactory } from "@a2a-js/sdk/client";
import { args, print, url } from "./script_io.mjs";

const [scene] = args;
const client = await new ClientFactory().createFromUrl(url);
const request = (text, more = {}) => ({
  message: {
    messageId: crypto.randomUUID(), contextId: "", taskId: "", role: 1,
    parts: [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }],
    metadata: undefined, extensions: [], referenceTaskIds: [], ...more,
  },
  tenant: "", configuration: undefined, metadata: undefined,
});

async function read(stream) {
  const seen = { text: "", states: [], id: "" };
  for await (const { payload } of stream) {
    if (payload.$case === "task") {
      seen.id = payload.value.id;
      seen.text = payload.value.artifacts.flatMap((item) => item.parts).map((part) => part.content.value).join("");
      seen.states.push(payload.value.status.state);
    } else if (payload.$case === "statusUpdate") seen.states.push(payload.value.status.state);
    else seen.text += payload.value.artifact.parts.map((part) => part.content.value).join("");
  }
  return { ...seen, states: [seen.states[0], seen.states.at(-1)] };
}

const asked = await read(client.sendMessageStream(request("Buy it")));
print(asked);
const done = await read(client.sendMessageStream(request("approve", { taskId: asked.id })));
print(done);
const task = await client.getTask({ id: asked.id, tenant: "", historyLength: undefined });
print({ id: task.id, state: task.status.state, text: task.artifacts[0].parts[0].content.value });
