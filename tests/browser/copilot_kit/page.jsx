// CopilotKit's own chat, as its guide shows it, with files. `locate` is a tool that the page runs and draws.
import { CopilotChat, CopilotKitProvider, useAgent, useCopilotKit, useFrontendTool } from "@copilotkit/react-core/v2";
import { createRoot } from "react-dom/client";
import { z } from "zod";

import { ThreadAgent } from "../../../docs/examples/thread-agent.js";

let place; // Until it is set, the tool takes its time.
window.calls = [];
window.setPlace = (value) => (place = value);

async function locate(input) {
  window.calls.push(input);
  while (!place) await new Promise((done) => setTimeout(done, 5));
  return place;
}

function Tool() {
  useFrontendTool({
    name: "locate",
    description: "Find the user.",
    parameters: z.object({ exact: z.boolean() }),
    handler: locate,
    render: ({ status, result }) => <p data-testid="locate" data-status={status}>{result}</p>,
  });
}

function Chat({ id }) {
  const { agent } = useAgent();
  const { copilotkit } = useCopilotKit();
  // The hook runs a tool when its call is streamed. One that was open when the page was loaded is for the page to run.
  const answered = agent.messages.map(({ toolCallId }) => toolCallId);
  const open = agent.messages.flatMap(({ toolCalls = [] }) => toolCalls).filter((call) => !answered.includes(call.id));
  const run = async (call) => {
    const content = await locate(JSON.parse(call.function.arguments));
    agent.addMessage({ id: `result-${call.id}`, role: "tool", toolCallId: call.id, content });
    await copilotkit.runAgent({ agent });
  };
  return (
    <div data-testid="chat" data-status={agent.isRunning ? "streaming" : "ready"}>
      <CopilotChat threadId={id} attachments={{ enabled: true, accept: "image/*" }} />
      {open.map((call) => <button key={call.id} onClick={() => run(call)}>Run {call.function.name}</button>)}
    </div>
  );
}

let root;

// Opens a chat instead of the one that is open. With the name of an agent, its tools are all that there are.
window.openChat = (_name, url, id, agent) => {
  const agents = { default: new ThreadAgent({ url: `${url}/ag-ui` }) };
  root?.unmount();
  root = createRoot(document.body.appendChild(document.createElement("main")));
  const properties = agent ? { agent } : {};
  root.render(
    <CopilotKitProvider selfManagedAgents={agents} properties={properties}>{!agent && <Tool />}<Chat id={id} /></CopilotKitProvider>,
  );
};
