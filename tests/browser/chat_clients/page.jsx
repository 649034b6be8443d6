// A chat page with the hooks of other projects, as their guides show them. `locate` is a tool that the page runs.
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
  const shown = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text ?? part.content).join("");
  return (
    <form data-testid="chat" data-status={status} onSubmit={(event) => { event.preventDefault(); send(text); }}>
      {messages.map((message) => <p key={message.id} data-testid={message.role}>{shown(message)}</p>)}
      <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
      <button>Send</button>
    </form>
  );
}

function AiSdk({ url, id, initial }) {
  const { messages, status, sendMessage, addToolOutput } = useChat({
    id,
    messages: initial,
    resume: initial.length > 0,
    transport: new DefaultChatTransport({ api: `${url}/api/chat?sdk_version=7` }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    async onToolCall({ toolCall }) {
      if (toolCall.dynamic || toolCall.toolName !== "locate") return;
      locate(toolCall.input).then((output) => addToolOutput({ tool: "locate", toolCallId: toolCall.toolCallId, output }));
    },
  });
  return <Page status={status} messages={messages} send={(text) => sendMessage({ text }, { body: { tools: [LOCATE] } })} />;
}

const located = toolDefinition({ name: "locate", description: "Find the user.", inputSchema: LOCATE.parameters }).client(locate);

function TanStack({ url, id }) {
  const { messages, status, sendMessage, addToolResult } = useTanStackChat({
    threadId: id,
    persistence: true,
    connection: fetchServerSentEvents(`${url}/ag-ui`),
    tools: clientTools(located),
  });
  // The hook runs a tool when its call is streamed. One that was open when the page was loaded is for the page to run.
  const open = messages.flatMap((message) => message.parts).filter((part) => part.type === "tool-call" && part.state === "input-complete");
  const run = async ({ id: toolCallId, name: tool, input }) => addToolResult({ toolCallId, tool, output: await locate(input) });
  return (
    <>
      <Page status={status} messages={messages} send={sendMessage} />
      {open.map((part) => <button key={part.id} onClick={() => run(part)}>Run {part.name}</button>)}
    </>
  );
}

const CLIENTS = { "ai-sdk": AiSdk, tanstack: TanStack };

window.openChat = async (name, url, id) => {
  const Client = CLIENTS[name];
  const initial = name === "ai-sdk" ? await loadMessages(url, id) : [];
  const root = document.body.appendChild(document.createElement("main"));
  createRoot(root).render(<StrictMode><Client url={url} id={id} initial={initial} /></StrictMode>);
};
