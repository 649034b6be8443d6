import type { Snapshot } from "@turnwire/client";
import { expect, it } from "vitest";

import { Conversation } from "../src/conversation";
import type { Link } from "../src/link";

it("a message that is sent while the conversation is opened comes after the earlier turns", async () => {
  let load!: () => void;
  const loaded = new Promise<void>((resolve) => (load = resolve));
  const snapshot = (turn_id: string) => ({ turn_id, phase: "ended", position: 3, state: { outcome: "completed" } }) as Snapshot;
  const client = {
    sessions: { get: async () => (await loaded, { turns: [snapshot("old")] }) },
    snapshot: async (id: string) => snapshot(id),
    followSession: async function* () {},
  };
  const link = { mode: "streaming", client, start: async () => "new" } as unknown as Link;
  const conversation = new Conversation(link, "s", { changed: () => {}, failed: (error) => expect.fail(String(error)) });
  const opening = conversation.open();
  const sending = conversation.send("Hello", "");
  load();
  await Promise.all([opening, sending]);
  expect(conversation.turns.map(({ turnId }) => turnId)).toEqual(["old", "new"]);
});
