// The AI SDK's chat, over HTTP (5, 6 and 7), on a WebSocket (7) and with the transport of workflows (7).
import { readFile } from "node:fs/promises";

import { args, print, until, url } from "./script_io.mjs";

const [transportName, scene, ...more] = args;
const ai = await import({ http5: "ai5", http6: "ai" }[transportName] ?? "ai7");

class State {
  status = "ready";
  error = undefined;
  constructor(messages) { this.messages = messages; }
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => { this.messages = this.messages.with(index, structuredClone(message)); };
  snapshot = (value) => structuredClone(value);
}

class Chat extends ai.AbstractChat {
  constructor({ messages = [], ...options }) { super({ ...options, state: new State(messages) }); }
}

const requests = [];
let cuts = false;

/** Fetches, and ends the first body after some text of the answer, as a proxy does that gives up. */
async function fetchCut(fetchWhole, address, options) {
  requests.push(`${options?.method ?? "GET"} ${address.slice(url.length)}`);
  const response = await fetchWhole(address, options);
  if (!cuts || requests.length > 1) return response;
  const cut = new TransformStream({
    transform(bytes, controller) {
      controller.enqueue(bytes);
      if (new TextDecoder().decode(bytes).includes("text-delta")) controller.terminate();
    },
  });
  return new Response(response.body.pipeThrough(cut), response);
}

async function transport() {
  if (transportName === "workflow7") {
    const { WorkflowChatTransport } = await import("@ai-sdk/workflow/client");
    const options = (await example("workflow-options.js")).workflowOptions(url);
    return new WorkflowChatTransport({ ...options, fetch: (...request) => fetchCut(options.fetch, ...request) });
  }
  if (transportName !== "ws7") return new ai.DefaultChatTransport({ api: `${url}/api/chat?sdk_version=${transportName.at(-1)}` });
  const { WebSocket } = await import("undici");
  return new ai.WebSocketChatTransport({ url: `${url.replace("http", "ws")}/api/chat/ws`, webSocket: WebSocket });
}

const chats = [];
const seen = [];
const tools = { locate: () => "Bern", clock: () => "noon" };
const declared = Object.keys(tools).map((name) => ({ name, description: name, parameters: { type: "object", properties: {} } }));
const complete = [ai.lastAssistantMessageIsCompleteWithToolCalls, ai.lastAssistantMessageIsCompleteWithApprovalResponses];
const calls = [];
async function open(id, messages, onFinish, runsTools = true) {
  const chat = new Chat({
    id,
    messages,
    transport: await transport(),
    sendAutomaticallyWhen: (chat) => complete.some((isComplete) => isComplete?.(chat)),
    onToolCall: ({ toolCall }) => {
      if (toolCall.dynamic || !runsTools || !(toolCall.toolName in tools)) return;
      calls.push(toolCall.toolName);
      chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: tools[toolCall.toolName]() });
    },
    onData: (part) => seen.push(part.type),
    onFinish,
  });
  chats.push(chat);
  return chat;
}

const last = (chat) => chat.messages.at(-1);
const parts = (chat) => (last(chat)?.role === "assistant" ? last(chat).parts : []);
const text = (chat) => parts(chat).filter((part) => part.type === "text").map((part) => part.text).join("");
const report = (chat) => ({ status: chat.status, error: chat.error?.message, message: last(chat), count: chat.messages.length, seen });

async function example(name) {
  // The guide's own file, whose `.js` Node would take for CommonJS.
  const source = await readFile(new URL(`../../docs/examples/${name}`, import.meta.url));
  return import(`data:text/javascript;base64,${source.toString("base64")}`);
}

async function loader() {
  const { loadMessages } = await example("load-messages.js");
  return () => loadMessages(url, "chat-1");
}

const chat = await open("chat-1", [], undefined, scene !== "call");
if (scene === "tools") {
  await chat.sendMessage({ text: more[0] }, { body: { tools: declared } });
  await until(() => chat.status === "ready" && text(chat).endsWith("."));
  print({ ...report(chat), calls });
} else if (scene === "call") {
  // The page is closed before it has run the tool.
  await chat.sendMessage({ text: more[0] }, { body: { tools: declared } });
  print({ ...report(chat), calls, messages: chat.messages });
} else if (scene === "reopen") {
  const again = await open("chat-1", JSON.parse(more[0]).slice(0, 1));
  await again.resumeStream();
  await until(() => again.status === "ready" && text(again).endsWith("."));
  print({ ...report(again), calls });
} else if (scene === "question") {
  await chat.sendMessage({ text: "colour" });
  const part = parts(chat).find((item) => item.type === "tool-question");
  print({ ...report(chat), part });
  const { toolCallId } = part;
  const reply = more[0] === "decline" ? { state: "output-error", errorText: "not now" } : { output: more[0] };
  chat.addToolOutput({ tool: "question", toolCallId, ...reply });
  await until(() => chat.status === "error" || (chat.status === "ready" && text(chat).endsWith(".")));
  print(report(chat));
} else if (scene === "ask") {
  await chat.sendMessage({ text: more[0] });
  print(report(chat));
} else if (scene === "again") {
  await chat.sendMessage({ text: more[0] });
  const first = last(chat).id;
  await chat.regenerate();
  print({ ...report(chat), first });
} else if (scene === "decide") {
  await chat.sendMessage({ text: more[0] });
  const part = last(chat).parts.find((item) => item.approval);
  print({ approval: part, ...report(chat) });
  await chat.addToolApprovalResponse({ id: part.approval.id, approved: more[1] === "true", reason: "as I like" });
  await until(() => chat.status === "ready" && text(chat));
  print(report(chat));
} else if (scene === "stop") {
  const sending = chat.sendMessage({ text: more[0] });
  await until(() => text(chat));
  print({ begun: text(chat) });
  const stopping = fetch(`${url}/api/chat/chat-1/stop`, { method: "POST" });
  await chat.stop();
  await sending;
  if (transportName !== "ws7") await stopping;
  print(report(chat));
} else if (scene === "hang-up") {
  // Stop, as the page has it: it only closes the connection. The next question must not wait for the answer before it.
  const sending = chat.sendMessage({ text: "wait" });
  await until(() => text(chat));
  await chat.stop();
  await sending;
  await chat.sendMessage({ text: "plain" });
  print(report(chat));
} else if (scene === "late") {
  const sending = chat.sendMessage({ text: more[0] });
  await until(() => text(chat));
  // The connection breaks here, and the client notices when the turn has ended.
  const partial = structuredClone(chat.messages);
  print({ begun: text(chat) });
  await sending;
  let finished = 0;
  const again = await open("chat-1", partial, () => (finished += 1));
  await again.resumeStream();
  print({ ...report(again), same: JSON.stringify(again.messages) === JSON.stringify(chat.messages), finished });
} else if (scene === "cut") {
  cuts = true;
  const sending = chat.sendMessage({ text: more[0] });
  await until(() => requests.length > 1);
  print({ begun: text(chat) });
  await sending;
  print({ ...report(chat), requests });
} else if (scene === "resume") {
  const sending = chat.sendMessage({ text: more[0] });
  await until(() => text(chat));
  // A reloaded page has the question, and nothing of the answer.
  const again = await open("chat-1", chat.messages.slice(0, 1));
  const resuming = again.resumeStream();
  await until(() => text(again));
  print({ begun: text(again) });
  await Promise.all([sending, resuming]);
  print({ ...report(again), same: JSON.stringify(last(again)) === JSON.stringify(last(chat)) });
  const idle = await open("chat-1", again.messages);
  await idle.resumeStream();
  print(report(idle));
} else if (scene === "queued") {
  // A second question waits for the answer to the first when the page is loaded again.
  const loadMessages = await loader();
  const sending = chat.sendMessage({ text: "first" });
  await until(() => text(chat));
  const tab = await open("chat-1", await loadMessages());
  const waiting = tab.sendMessage({ text: "second" });
  await until(() => last(tab).role === "assistant");
  const again = await open("chat-1", await loadMessages());
  const loaded = structuredClone(again.messages);
  const resuming = again.resumeStream();
  await until(() => again.messages.length > loaded.length);
  print({ loaded });
  await Promise.all([sending, waiting, resuming]);
  print({ ...report(again), messages: again.messages, same: JSON.stringify(last(again)) === JSON.stringify(last(tab)) });
  print({ loaded: await loadMessages() });
} else if (scene === "load") {
  const loadMessages = await loader();
  for (const message of more) {
    await chat.sendMessage({ text: message }, message === "mixed" ? { body: { tools: declared } } : {});
    await until(() => chat.status !== "ready" || message !== "mixed" || text(chat).endsWith("Still in Bern."));
  }
  const loaded = await loadMessages();
  print({ built: chat.messages, loaded });
  const again = await open("chat-1", loaded);
  const approval = parts(again).find((part) => part.state === "approval-requested")?.approval;
  if (approval) {
    await again.addToolApprovalResponse({ id: approval.id, approved: true });
    await until(() => again.status === "ready" && text(again));
    // The log has the decision too: a page that reads the whole stream is the same as one that is loaded.
    const replayed = await open("chat-1", loaded.slice(0, -1));
    await replayed.resumeStream();
    print({ text: text(again), built: replayed.messages, loaded: await loadMessages() });
  }
} else if (scene === "reload") {
  const loadMessages = await loader();
  const fresh = await loadMessages();
  await chat.sendMessage({ text: more[0] });
  const again = await open("chat-1", await loadMessages());
  const loaded = again.messages;
  await again.sendMessage({ text: more[0] });
  await again.regenerate();
  const third = await open("chat-1", await loadMessages());
  const sending = third.sendMessage({ text: "wait" });
  await until(() => text(third) === "It begins ");
  const running = await open("chat-1", await loadMessages());
  const before = running.messages.map((message) => message.role);
  const resuming = running.resumeStream();
  await until(() => text(running) === "It begins ");
  await fetch(`${url}/api/chat/chat-1/stop`, { method: "POST" });
  await Promise.all([sending, resuming]);
  print({ fresh, loaded, shown: third.messages, last: again.messages.at(-1).id, before, after: running.messages.length });
}
for (const opened of chats) opened.transport.close?.();
