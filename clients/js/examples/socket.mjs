import { TurnwireClient, TurnwireSocket } from "@turnwire/client";

const socket = new TurnwireSocket(new TurnwireClient({ url: "http://127.0.0.1:8420" }));
const turns = await Promise.all(["One", "Two"].map((message) => socket.start({ message })));
for (const turn of turns) {
  for await (const { event } of turn.events()) if (event?.type === "response") console.log(event.content);
}
socket.close();
