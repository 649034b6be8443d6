import { TurnwireClient } from "@turnwire/client";
import { TurnwireProvider, useSession } from "@turnwire/react";

const client = new TurnwireClient({ url: "http://127.0.0.1:8420" });

export function App() {
  return (
    <TurnwireProvider client={client}>
      <Chat sessionId="my-chat" />
    </TurnwireProvider>
  );
}

function Chat({ sessionId }: { sessionId: string }) {
  const { turns, isBusy, error, send, stop, decide } = useSession(sessionId);
  return (
    <>
      {error && <p role="alert">{error.message}</p>}
      {turns.map((turn) => (
        <article key={turn.turnId}>
          <p>{turn.message}</p>
          <p>{turn.text}</p>
          {turn.approvals.map(({ call_id, tool, args }) => (
            <p key={call_id}>
              {tool} {JSON.stringify(args)}
              <button onClick={() => decide(turn.turnId, call_id, { approved: true, args })}>Allow</button>
              <button onClick={() => decide(turn.turnId, call_id, { approved: false })}>Deny</button>
            </p>
          ))}
        </article>
      ))}
      <button onClick={() => send("Hello")}>Say hello</button>
      {isBusy && <button onClick={() => stop()}>Stop</button>}
    </>
  );
}
