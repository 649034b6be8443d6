// Files sent by the clients' own means: to each agent a picture, then a second message without one.
import { args, print, url } from "./script_io.mjs";

const [client, picture, ...agents] = args;
const dataUrl = `data:image/png;base64,${picture}`;

async function aiSdk(agent, name) {
  const ai = await import(name);
  class State {
    status = "ready";
    error = undefined;
    messages = [];
    pushMessage = (message) => { this.messages = [...this.messages, message]; };
    popMessage = () => { this.messages = this.messages.slice(0, -1); };
    replaceMessage = (index, message) => { this.messages = this.messages.with(index, structuredClone(message)); };
    snapshot = (value) => structuredClone(value);
  }
  const transport = new ai.DefaultChatTransport({ api: `${url}/api/chat`, body: { agent } });
  const chat = new (class extends ai.AbstractChat {})({ id: `chat-${agent}`, transport, state: new State() });
  const files = [{ type: "file", mediaType: "image/png", filename: "cat.png", url: dataUrl }];
  await chat.sendMessage({ text: "What is it?", files });
  await chat.sendMessage({ text: "Which colour?" });
  return chat.status === "ready" ? "ready" : String(chat.error);
}

async function agUi(agent) {
  const { HttpAgent } = await import("@ag-ui/client");
  const http = new HttpAgent({ url: `${url}/ag-ui`, threadId: `thread-${agent}` });
  const source = { type: "data", value: picture, mimeType: "image/png" };
  http.addMessage({ id: "u1", role: "user", content: [{ type: "text", text: "What is it?" }, { type: "image", source }] });
  await http.runAgent({ runId: `run-1-${agent}`, forwardedProps: { agent } });
  http.addMessage({ id: "u2", role: "user", content: "Which colour?" });
  await http.runAgent({ runId: `run-2-${agent}`, forwardedProps: { agent } });
  return "ready";
}

async function openai(agent, api) {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  if (api === "responses") {
    const content = [{ type: "input_text", text: "What is it?" }, { type: "input_image", image_url: dataUrl }];
    const first = await client.responses.create({ model: agent, input: [{ role: "user", content }] });
    await client.responses.create({ model: agent, input: "Which colour?", previous_response_id: first.id });
  } else {
    const content = [{ type: "text", text: "What is it?" }, { type: "image_url", image_url: { url: dataUrl } }];
    const messages = [{ role: "user", content }];
    const first = await client.chat.completions.create({ model: agent, messages });
    messages.push(first.choices[0].message, { role: "user", content: "Which colour?" });
    await client.chat.completions.create({ model: agent, messages });
  }
  return "ready";
}

async function provider(agent, api) {
  const [{ createOpenAI }, { generateText }] = [await import("@ai-sdk/openai"), await import("ai")];
  const model = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" })[api](agent);
  const content = [{ type: "text", text: "What is it?" }, { type: "image", image: picture, mediaType: "image/png" }];
  const messages = [{ role: "user", content }];
  const first = await generateText({ model, messages, maxRetries: 0 });
  messages.push(...first.response.messages, { role: "user", content: "Which colour?" });
  await generateText({ model, messages, maxRetries: 0 });
  return "ready";
}

const senders = {
  ai5: (agent) => aiSdk(agent, "ai5"), ai6: (agent) => aiSdk(agent, "ai"), ai7: (agent) => aiSdk(agent, "ai7"),
  ag_ui: agUi, responses: (agent) => openai(agent, "responses"), completions: (agent) => openai(agent, "completions"),
  provider_responses: (agent) => provider(agent, "responses"), provider_completions: (agent) => provider(agent, "chat"),
};
for (const agent of agents) print(await senders[client](agent));
