// A chat page with the hooks of other projects, as their guides show them. `locate` is a tool that the page runs, and the
// page sends the files that are chosen.
import { useChat } from "@ai-sdk/react";
import { toolDefinition } from "@tanstack/ai/client";
import { clientTools, fetchServerSentEvents, useChat as useTanStackChat } from "@tanstack/ai-react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } from "ai";
import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";

import { loadMessages } from "../../../docs/examples/load-messages.js";

const LOCATE = { name: "locate", description: "Find the user.", parameters: { type: "object", properties: { exact: { type: "boolean" } } } };
let place; // Until it is set, the tool takes its time.
window.calls = [];
window.setPlace = (value) => (place = value);

async function locate(input) {
  window.calls.push(input);
  while (!place) await new Promise((done) => setTimeout(done, 5));
  return place;
}

function Page({ status, messages, send }) {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    send(text, event.target.elements.files.files);
    event.target.reset(); // Of the files.
  };
  const shown = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text ?? part.content).join("");
  return (
    <form data-testid="chat" data-status={status} onSubmit={submit}>
      {messages.map((message) => <p key={message.id} data-testid={message.role}>{shown(message)}</p>)}
      <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
      <input type="file" name="files" />
      <button>Send</button>
    </form>
  );
}

function AiSdk({ url, id, agent, initial }) {
  const { messages, status, sendMessage, addToolOutput } = useChat({
    id,
    messages: initial,
    resume: initial.length > 0,
    transport: new DefaultChatTransport({ api: `${url}/api/chat?sdk_version=7`, body: { agent } }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    async onToolCall({ toolCall }) {
      if (toolCall.dynamic || toolCall.toolName !== "locate") return;
      locate(toolCall.input).then((output) => addToolOutput({ tool: "locate", toolCallId: toolCall.toolCallId, output }));
    },
  });
  const options = agent ? {} : { body: { tools: [LOCATE] } };
  return <Page status={status} messages={messages} send={(text, files) => sendMessage({ text, files }, options)} />;
}

const located = toolDefinition({ name: "locate", description: "Find the user.", inputSchema: LOCATE.parameters }).client(locate);

async function partOf(file) {
  const value = btoa(String.fromCharCode(...new Uint8Array(await file.arrayBuffer())));
  return { type: "image", source: { type: "data", value, mimeType: file.type } };
}

function TanStack({ url, id, agent }) {
  const { messages, status, sendMessage, addToolResult } = useTanStackChat({
    threadId: id,
    persistence: true,
    connection: fetchServerSentEvents(`${url}/ag-ui`),
    ...(agent ? { forwardedProps: { agent } } : { tools: clientTools(located) }),
  });
  const send = async (text, [file]) => sendMessage(file ? { content: [{ type: "text", content: text }, await partOf(file)] } : text);
  // The hook runs a tool when its call is streamed. One that was open when the page was loaded is for the page to run.
  const open = messages.flatMap((message) => message.parts).filter((part) => part.type === "tool-call" && part.state === "input-complete");
  const run = async ({ id: toolCallId, name: tool, input }) => addToolResult({ toolCallId, tool, output: await locate(input) });
  return (
    <>
      <Page status={status} messages={messages} send={send} />
      {open.map((part) => <button key={part.id} onClick={() => run(part)}>Run {part.name}</button>)}
    </>
  );
}

const CLIENTS = { "ai-sdk": AiSdk, tanstack: TanStack };

let root;

// Opens a chat instead of the one that is open. With the name of an agent, its tools are all that there are.
window.openChat = async (name, url, id, agent) => {
  const Client = CLIENTS[name];
  const initial = name === "ai-sdk" ? await loadMessages(url, id) : [];
  root?.unmount();
  root = createRoot(document.body.appendChild(document.createElement("main")));
  root.render(<StrictMode><Client url={url} id={id} agent={agent} initial={initial} /></StrictMode>);
};
