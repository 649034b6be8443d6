import assert from "node:assert/strict";
import { test } from "node:test";

const page = Object.assign(new EventTarget(), { visibilityState: "visible", querySelector: () => null });
Object.assign(globalThis, { document: page });
const show = (state: string) => {
  page.visibilityState = state;
  page.dispatchEvent(new Event("visibilitychange"));
};
const settle = () => new Promise((go) => setImmediate(go));

test("log is read by one loop after the tab was hidden while the server was away", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { TurnLog } = await import("../src/inspector/log.ts");
  const held: (() => void)[] = [];
  let isAway = true;
  t.mock.method(globalThis, "fetch", async (address: string) => {
    if (isAway) return new Response("{}", { status: 400 });
    await new Promise<void>((go) => held.push(go));
    const after = Number(new URL(address).searchParams.get("after"));
    const events = [1, 2].filter((position) => position > after).map((position) => ({ position, epoch: 1, at: position, event: { type: "status", text: "" } }));
    return Response.json({ events, after: 2, done: true });
  });
  const log = new TurnLog("t");
  show("hidden");
  for (let passed = 0; passed < 5_000; passed += 500) {
    await settle();
    t.mock.timers.tick(500);
  }
  isAway = false;
  show("visible");
  for (let passed = 0; passed < 3_000; passed += 500) {
    await settle();
    t.mock.timers.tick(500);
  }
  for (const go of held) go();
  await settle();
  await settle();
  assert.deepEqual(log.events.map(({ position }) => position), [1, 2]);
  assert.ok(log.isDone);
});
