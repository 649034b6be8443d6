import { TurnwireClient, TurnwireError } from "@turnwire/client";

const client = new TurnwireClient({ url: "http://127.0.0.1:8420" });
try {
  const turn = await client.start({ message: "Wait for me", onBusy: "reject" });
  for await (const { event } of turn.events({ signal: AbortSignal.timeout(60_000) })) {
    if (event?.type === "token") await turn.cancel();
    if (event?.type === "done") console.log(event.outcome);
  }
} catch (error) {
  if (!(error instanceof TurnwireError)) throw error;
  console.log(error.status, error.code, error.message);
}
