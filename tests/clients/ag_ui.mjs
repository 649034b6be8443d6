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

agent.addMessage({ id: "u1", role: "user", content: message });
if (scene === "stop") {
  const running = run({ runId: "run-1" });
  await until(() => seen.some((event) => event.type === "TEXT_MESSAGE_CONTENT"));
  const turn = await (await fetch(`${url}/v1/turns/run-1/cancel`, { method: "POST" })).json();
  print({ cancelled: turn.outcome });
  await running;
} else {
  const finished = await run({ runId: "run-1" });
  if (scene === "decide") {
    const resume = finished.outcome.interrupts.map(({ id }) => ({
      interruptId: id, status: "resolved", payload: { approved: more[0] === "true" },
    }));
    await run({ runId: "run-2", resume });
  }
  if (scene === "twice") {
    agent.addMessage({ id: "u2", role: "user", content: more[0] });
    await run({ runId: "run-2" });
  }
}
