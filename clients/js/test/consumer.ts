// A TypeScript program that uses the package: type-checked, never run.
import { applyEvent, EMPTY_VIEW, type Followed, TurnwireClient, TurnwireSocket, type TurnView } from "@turnwire/client";

const client = new TurnwireClient({ key: () => undefined });
const turn = await client.start({ message: "Hi", onDisconnect: { grace: 3 } });
let view: TurnView = EMPTY_VIEW;
for await (const item of turn.events({ after: "1.1" })) {
  view = applyEvent(view, item);
  if (item.control === "gap") item.state.text satisfies string | undefined;
  else if (item.event?.type === "citation") item.event.index satisfies number;
  else if (item.event) item.position satisfies number;
}
// @ts-expect-error: unknown event.
export const wrong = (item: Followed): boolean => item.event?.type === "nothing";
// @ts-expect-error: `message` is required.
await client.start({ sessionId: "mine" });
new TurnwireSocket(client).turn("t").events() satisfies AsyncIterable<Followed>;
