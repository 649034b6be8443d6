import { applyEvent, EMPTY_VIEW, TurnwireClient } from "@turnwire/client";

const client = new TurnwireClient({ url: "http://127.0.0.1:8420" });
client.onConnection((state) => console.log(state === "online" ? "back" : "the server is away, trying again"));

const turn = await client.start({ message: "Pay 40 for the ferry" });
let view = EMPTY_VIEW;
for await (const item of turn.events()) {
  view = applyEvent(view, item);
  for (const { call_id, tool, args } of item.event?.type === "approval_request" ? view.approvals : []) {
    console.log(`${tool} with ${JSON.stringify(args)}?`);
    await turn.decide(call_id, { approved: true, args });
  }
}
console.log(view.outcome, view.text, view.steps.map(({ name, state }) => `${name} ${state}`));
