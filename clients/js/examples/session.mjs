import { applyEvent, EMPTY_VIEW, TurnwireClient } from "@turnwire/client";

const client = new TurnwireClient({ url: "http://127.0.0.1:8420" });
await client.sessions.create({ id: "shared" });
await client.enqueue({ sessionId: "shared", message: "Hello" });

let views = new Map();
for await (const item of client.followSession("shared")) {
  if (item.control === "reset") views = new Map();
  if (item.turnId === undefined) continue;
  const view = applyEvent(views.get(item.turnId) ?? EMPTY_VIEW, item);
  views.set(item.turnId, view);
  if (view.phase === "ended") break;
}
for (const { message, text } of views.values()) console.log(`${message} -> ${text}`);
