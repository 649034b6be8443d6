/** The page of the browser tests: a chat made of the hooks, in React's strict mode. */

import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { TurnwireClient, type TurnView } from "@turnwire/client";
import { TurnwireProvider, useConnection, useSession, useTurn } from "../src/index.js";

declare global {
  interface Window {
    openChat: (url: string, sessionId: string, hasTools?: boolean) => void;
    renders: number;
  }
}

function Chat({ sessionId, hasTools }: { sessionId: string; hasTools: boolean }) {
  const [message, setMessage] = useState("");
  const [watched, setWatched] = useState<string | null>(null);
  const [place, setPlace] = useState("");
  const tools = [{ name: "locate", parameters: { type: "object" }, run: () => place }];
  const { turns, isBusy, error, send, stop, decide } = useSession(sessionId, hasTools ? { tools } : {});
  window.renders++;
  return (
    <main data-testid="chat" data-busy={isBusy}>
      {error && <p role="alert">{error.message}</p>}
      {turns.map((view) => (
        <Turn key={view.turnId} view={view} onWatch={setWatched} decide={decide} />
      ))}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void send(message);
          setMessage("");
        }}
      >
        <input aria-label="Message" value={message} onChange={(event) => setMessage(event.target.value)} />
        <button>Send</button>
      </form>
      {hasTools && <input aria-label="Place" value={place} onChange={(event) => setPlace(event.target.value)} />}
      <button onClick={() => void stop()}>Stop</button>
      {watched && <Watched turnId={watched} />}
    </main>
  );
}

function Turn(props: {
  view: TurnView;
  onWatch: (turnId: string) => void;
  decide: ReturnType<typeof useSession>["decide"];
}) {
  const { view, onWatch, decide } = props;
  return (
    <section data-testid="turn" data-outcome={view.outcome} data-turn-id={view.turnId}>
      <p data-testid="message">{view.message}</p>
      <p data-testid="answer">{view.text}</p>
      {view.approvals.map(({ call_id, tool, args }) => (
        <p key={call_id} data-testid="approval">
          {tool} {JSON.stringify(args)}
          <button onClick={() => void decide(view.turnId, call_id, { approved: true })}>Approve</button>
          <button onClick={() => void decide(view.turnId, call_id, { approved: false, reason: "too much" })}>Deny</button>
        </p>
      ))}
      <button onClick={() => onWatch(view.turnId)}>Watch</button>
    </section>
  );
}

function Watched({ turnId }: { turnId: string }) {
  const { view, error, rate } = useTurn(turnId);
  return (
    <aside data-testid="watched" data-outcome={view.outcome} data-position={view.position}>
      {error ? error.message : view.text}
      <button onClick={() => void rate("up", "good")}>Good</button>
    </aside>
  );
}

function Page({ sessionId, hasTools }: { sessionId: string; hasTools: boolean }) {
  const [isOpen, setOpen] = useState(true);
  return (
    <>
      <output data-testid="connection">{useConnection()}</output>
      <button onClick={() => setOpen(!isOpen)}>{isOpen ? "Leave" : "Return"}</button>
      {isOpen && <Chat sessionId={sessionId} hasTools={hasTools} />}
    </>
  );
}

window.renders = 0;
window.openChat = (url, sessionId, hasTools = false) => {
  const client = new TurnwireClient({ url, retry: { first: 1, most: 20, attempts: 1_000 } });
  const root = document.body.appendChild(document.createElement("div"));
  createRoot(root).render(
    <StrictMode>
      <TurnwireProvider client={client}>
        <Page sessionId={sessionId} hasTools={hasTools} />
      </TurnwireProvider>
    </StrictMode>,
  );
};
