// AG-UI's HttpAgent, which verifies every run.
import { HttpAgent } from "@ag-ui/client";
import { args, print, until, url } from "./script_io.mjs";

const [scene, message, ...more] = args;
const agent = new HttpAgent({ url: `${url}/ag-ui`, threadId: "thread-1" });
const seen = [];
const failure = {};
const subscriber = {
  onEvent: ({ event }) => { seen.push(event); },
  onRunErrorEvent: ({ event }) => { failure.error = { message: event.message, code: event.code }; },
};

async function run(parameters) {
  seen.length = 0;
  delete failure.error;
  delete failure.rejected;
  try {
    await agent.runAgent(parameters, subscriber);
  } catch (error) {
    failure.rejected = String(error);
  }
  const finished = seen.findLast((event) => event.type === "RUN_FINISHED");
  print({ ...failure, types: seen.map((event) => event.type), outcome: finished?.outcome, messages: agent.messages });
  return finished;
}

// As a front end does: its own tools are the calls that have no result when a run has ended.
const outputs = { locate: "Bern", clock: "noon" };
const tools = Object.keys(outputs).map((name) => ({ name, description: name, parameters: { type: "object", properties: {} } }));
const openCalls = () => {
  const answered = new Set(agent.messages.filter(({ role }) => role === "tool").map(({ toolCallId }) => toolCallId));
  return agent.messages.flatMap(({ toolCalls = [] }) => toolCalls).filter(({ id }) => !answered.has(id));
};
const answer = (call) => {
  const content = outputs[call.function.name];
  agent.addMessage({ id: `result-${call.id}`, role: "tool", toolCallId: call.id, content });
};

if (scene === "reopen") {
  const thread = await (await fetch(`${url}/ag-ui?threadId=thread-1`)).json();
  agent.setMessages(thread.messages.map(({ parts, ...rest }) => rest));
  openCalls().forEach(answer);
  await run({ runId: "run-2", tools });
  process.exit();
}
agent.addMessage({ id: "u1", role: "user", content: message });
if (scene === "stop") {
  const running = run({ runId: "run-1" });
  await until(() => seen.some((event) => event.type === "TEXT_MESSAGE_CONTENT"));
  const turn = await (await fetch(`${url}/v1/turns/run-1/cancel`, { method: "POST" })).json();
  print({ cancelled: turn.outcome });
  await running;
} else {
  const finished = await run({ runId: "run-1", ...(["tools", "call"].includes(scene) && { tools }) });
  if (scene === "decide") {
    const resume = finished.outcome.interrupts.map(({ id }) => ({
      interruptId: id, status: "resolved", payload: { approved: more[0] === "true" },
    }));
    await run({ runId: "run-2", resume });
  }
  if (scene === "tools" || scene === "call") {
    for (let number = 2; scene === "tools" && openCalls().length; number += 1) {
      for (const call of openCalls()) answer(call);
      await run({ runId: `run-${number}`, tools });
    }
  }
  if (scene === "question") {
    const [interrupt] = finished.outcome.interrupts;
    const cancelled = more[0] === "decline";
    await run({
      runId: "run-2",
      resume: [{ interruptId: interrupt.id, status: cancelled ? "cancelled" : "resolved", payload: cancelled ? undefined : more[0] }],
    });
  }
  if (scene === "state") {
    print({ state: agent.state });
    agent.addMessage({ id: "u2", role: "user", content: "again" });
    await run({ runId: "run-2" });
    print({ state: agent.state });
  }
  if (scene === "twice") {
    agent.addMessage({ id: "u2", role: "user", content: more[0] });
    await run({ runId: "run-2" });
  }
}
