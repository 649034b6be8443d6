import { TurnwireClient } from "@turnwire/client";

const client = new TurnwireClient({ url: "http://127.0.0.1:8420" });
const turn = await client.start({ message: "Hello", sessionId: "my-chat" });
for await (const { event } of turn.events()) {
  if (event?.type === "token") process.stdout.write(event.content);
}
