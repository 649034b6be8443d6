// OpenAI's client for Node.
import { once } from "node:events";
import { createInterface } from "node:readline";
import OpenAI from "openai";
import { args, print, until, url } from "./script_io.mjs";

const [scene, input] = args;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });

if (scene === "responses") {
  const stream = client.responses.stream({ model: "turnwire", input });
  let text = "";
  const types = [];
  for await (const event of stream) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  const final = await stream.finalResponse();
  print({ text, types, id: final.id, status: final.status, output: final.output, final: final.output_text });
  const plain = await client.responses.create({ model: "turnwire", input: "plain", previous_response_id: final.id });
  print({ text: plain.output_text, status: plain.status, previous: plain.previous_response_id });
} else if (scene === "failing") {
  const stream = await client.responses.create({ model: "turnwire", input, stream: true });
  let last;
  for await (const event of stream) last = event;
  print({ type: last.type, status: last.response.status, error: last.response.error });
} else if (scene === "background") {
  const begun = await client.responses.create({ model: "turnwire", input, background: true, stream: true });
  const first = [];
  for await (const event of begun) {
    first.push(event);
    if (event.type === "response.output_text.delta") break; // Leaves the connection.
  }
  const { id } = first[0].response;
  print({ id, seen: first.length });
  const rest = [];
  const resumed = await client.responses.retrieve(id, { stream: true, starting_after: first.at(-1).sequence_number });
  for await (const event of resumed) rest.push(event);
  const numbers = [...first, ...rest].map((event) => event.sequence_number);
  const text = [...first, ...rest].filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
  print({ text, gapless: numbers.every((number, index) => number === index), last: rest.at(-1).type });
  const replayed = client.responses.stream({ response_id: id, starting_after: first.at(-1).sequence_number });
  print({ final: (await replayed.finalResponse()).output_text, polled: (await client.responses.retrieve(id)).status });
} else if (scene === "cancel") {
  const begun = await client.responses.create({ model: "turnwire", input, background: true });
  print({ id: begun.id, status: begun.status });
  await until(() => true);
  print({ status: (await client.responses.cancel(begun.id)).status });
} else if (scene === "completions") {
  const stream = client.chat.completions.stream({
    model: "turnwire", messages: [{ role: "user", content: input }], stream_options: { include_usage: true },
  });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  const final = await stream.finalChatCompletion();
  print({ text, final: final.choices[0].message.content, reason: final.choices[0].finish_reason, usage: final.usage });
  const whole = await client.chat.completions.create({ model: "turnwire", messages: [{ role: "user", content: input }] });
  print({ text: whole.choices[0].message.content, models: (await client.models.list()).data.map((model) => model.id) });
} else if (scene === "tools") {
  const run = (name, output) => ({
    type: "function",
    function: { name, description: name, parameters: { type: "object", properties: {} }, parse: JSON.parse, function: () => output },
  });
  const runner = client.chat.completions.runTools({
    model: "turnwire", messages: [{ role: "user", content: input }], tools: [run("locate", "Bern"), run("clock", "noon")],
  });
  const text = await runner.finalContent();
  print({ text, roles: runner.messages.map((message) => message.role) });
} else if (scene === "tools-restart") {
  const locate = async () => {
    print({ called: "locate" });
    const [line] = await once(createInterface(process.stdin), "line"); // The address of the server after its restart.
    client.baseURL = `${line}/v1`;
    process.stdin.destroy();
    return "Bern";
  };
  const parameters = { type: "object", properties: {} };
  const tool = { type: "function", function: { name: "locate", description: "Find the user.", parameters, parse: JSON.parse, function: locate } };
  const options = { model: "turnwire", messages: [{ role: "user", content: input }], tools: [tool], stream: args[2] === "streamed" };
  const runner = client.chat.completions.runTools(options);
  print({ text: await runner.finalContent() });
} else if (scene === "ai-sdk") {
  const [{ createOpenAI }, { generateText, streamText }] = [await import("@ai-sdk/openai"), await import("ai")];
  const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  for (const model of [provider.responses("turnwire"), provider.chat("turnwire")]) {
    const whole = await generateText({ model, prompt: input, maxRetries: 0 });
    const streamed = streamText({ model, prompt: input, maxRetries: 0 });
    print({ text: whole.text, streamed: await streamed.text, usage: whole.usage.inputTokens, reason: await streamed.finishReason });
  }
} else if (scene === "broken") {
  const stream = await client.chat.completions.create({
    model: "turnwire", messages: [{ role: "user", content: input }], stream: true,
  });
  let text = "";
  try {
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    print({ text, error: null });
  } catch (error) {
    print({ text, error: String(error) });
  }
}
