// Model options sent by the clients' own means, in one message to an agent; prints the answer, or why there is none.
import { args, print, url } from "./script_io.mjs";

const [client, agent] = args;
const schema = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
const question = "How is Oslo?";
const model_options = {
  instructions: "In rhyme.", temperature: 0.25, top_p: 0.75, max_tokens: 77, stop: ["END"], tool_choice: { name: "look" },
  response_format: { type: "json_schema", json_schema: { name: "weather", schema, strict: true } },
};

async function aiSdk(name) {
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
  const transport = new ai.DefaultChatTransport({ api: `${url}/api/chat` });
  const chat = new (class extends ai.AbstractChat {})({ id: "chat-1", transport, state: new State() });
  await chat.sendMessage({ text: question }, { body: { agent, model_options } });
  if (chat.status !== "ready") throw chat.error;
  return chat.messages.at(-1).parts.filter(({ type }) => type === "text").map(({ text }) => text).join("");
}

async function agUi() {
  const { HttpAgent } = await import("@ag-ui/client");
  const http = new HttpAgent({ url: `${url}/ag-ui`, threadId: "thread-1" });
  http.addMessage({ id: "u1", role: "user", content: question });
  await http.runAgent({ runId: "run-1", forwardedProps: { agent, model_options } });
  return http.messages.at(-1).content;
}

async function openai(api) {
  const { default: OpenAI } = await import("openai");
  const own = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const { instructions, temperature, top_p, max_tokens, stop } = model_options;
  if (api === "responses") {
    const format = { type: "json_schema", name: "weather", schema, strict: true };
    const response = await own.responses.parse({
      model: agent, input: question, instructions, temperature, top_p, max_output_tokens: max_tokens,
      tool_choice: { type: "function", name: "look" }, text: { format },
    });
    if (JSON.stringify(response.text.format) !== JSON.stringify(format)) throw new Error(JSON.stringify(response.text));
    return JSON.stringify(response.output_parsed);
  }
  const stream = own.chat.completions.stream({
    model: agent, messages: [{ role: "system", content: instructions }, { role: "user", content: question }],
    temperature, top_p, max_completion_tokens: max_tokens, stop, response_format: model_options.response_format,
    tool_choice: { type: "function", function: { name: "look" } },
  });
  return (await stream.finalChatCompletion()).choices[0].message.content;
}

const senders = {
  ai5: () => aiSdk("ai5"), ai6: () => aiSdk("ai"), ai7: () => aiSdk("ai7"), ag_ui: agUi,
  responses: () => openai("responses"), completions: () => openai("completions"),
};
try {
  print({ answer: await senders[client]() });
} catch (error) {
  print({ status: error.status ?? null, param: error.param ?? null, error: String(error.message) });
}
