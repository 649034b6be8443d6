/** The page: sessions at the side, the conversation in the middle, a document beside it. */

import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ConnectionState } from "../../js/src/index.ts";
import { Conversation } from "./conversation.ts";
import { IconButton } from "./icons.tsx";
import { useObserved } from "./observed.ts";
import { Composer } from "./parts/composer.tsx";
import { SourcePanel } from "./parts/document.tsx";
import { DocumentsPanel } from "./parts/documents.tsx";
import { Gate } from "./parts/gate.tsx";
import { Sidebar } from "./parts/sidebar.tsx";
import type { Source } from "./parts/sources.tsx";
import { Transcript } from "./parts/transcript.tsx";
import { Uploads } from "./parts/uploads.tsx";
import { client, isStatus, logOut, type Me, type Offer, root, sessionAddress, whatIsOffered } from "./server.ts";
import { SessionList } from "./sessions.ts";
import { statusOf } from "./words.ts";

const sessionInAddress = (): string | null => new URLSearchParams(location.search).get("session");

type Panel = { kind: "source"; source: Source } | { kind: "documents" } | null;

function Home({ me, onLeave }: { me: Me; onLeave: () => void }) {
  const list = useMemo(() => new SessionList(), []);
  const uploads = useMemo(() => new Uploads(), []);
  const [offer, setOffer] = useState<Offer | null>(null);
  const [agent, setAgent] = useState<string | undefined>();
  const [panel, setPanel] = useState<Panel>(null);
  const [isSideOpen, setSideOpen] = useState(false);
  const opener = useRef<HTMLElement | null>(null);

  const open = useCallback((sessionId: string | null) => {
    return new Conversation(sessionId, {
      began: (id) => history.replaceState(null, "", sessionAddress(id)),
      moved: () => list.refresh(),
      unauthorized: onLeave,
    });
  }, []);
  const [conversation, setConversation] = useState(() => open(sessionInAddress()));
  useObserved(conversation);
  const shown = useRef(conversation);
  shown.current = conversation;
  const pick = useCallback(
    (sessionId: string | null, isBack = false) => {
      setConversation((now) => {
        if (sessionId !== null && now.sessionId === sessionId && !now.problem) return now;
        now.close();
        return open(sessionId);
      });
      if (!isBack) history.pushState(null, "", sessionId ? sessionAddress(sessionId) : `${root}/`);
      setSideOpen(false);
      setPanel((now) => (now?.kind === "source" ? null : now));
    },
    [open],
  );

  useEffect(() => {
    list.refresh(0);
    whatIsOffered().then(
      (found) => {
        setOffer(found);
        setAgent(found.agents.find((one) => one.is_default)?.name ?? found.agents[0]?.name);
      },
      (error: unknown) => isStatus(error, 401) && onLeave(),
    );
    const back = () => pick(sessionInAddress(), true);
    addEventListener("popstate", back);
    return () => {
      removeEventListener("popstate", back);
      list.close();
      shown.current.close();
    };
  }, []);

  const closePanel = () => {
    setPanel(null);
    opener.current?.focus();
  };
  const show = (next: Panel, from?: HTMLElement) => {
    opener.current = from ?? (document.activeElement as HTMLElement | null);
    setPanel(next);
    setSideOpen(false);
  };
  const isDropping = useDrop(offer?.takes_documents ? (files) => uploads.add(files) : null);
  useShortcuts(() => (panel ? closePanel() : setSideOpen(false)), () => setSideOpen(true));

  const path = conversation.path;
  const running = conversation.running;
  const title = list.sessions?.find((one) => one.id === conversation.sessionId)?.title ?? conversation.session?.title ?? null;
  const ask = (message: string) => void conversation.send(message, offer && offer.agents.length > 1 ? agent : undefined);
  const last = path.findLast((entry) => entry.phase === "running" || entry.phase === "ended");
  const isAsking = last?.phase === "running";
  useEffect(() => {
    document.title = `${isAsking ? "… " : ""}${title ? `${title} · ` : ""}Turnwire`;
  }, [title, isAsking]);

  return (
    <div class={`app ${isSideOpen ? "side-open" : ""} ${panel ? "panel-open" : ""} ${isDropping ? "dropping" : ""}`}>
      <a class="skip" href="#composer">
        Skip to the message box
      </a>
      <Sidebar
        list={list}
        current={conversation.sessionId}
        me={me}
        hasDocuments={!!offer?.takes_documents}
        onPick={pick}
        onDocuments={() => show({ kind: "documents" })}
        onRenamed={(id, name) => id === conversation.sessionId && conversation.session && (conversation.session.title = name)}
        onDeleted={(id) => id === conversation.sessionId && pick(null)}
        onLogOut={() => void logOut().finally(onLeave)}
        onClose={() => setSideOpen(false)}
      />
      {isSideOpen && <div class="shade" onClick={() => setSideOpen(false)} />}
      <main class="main">
        <header class="main-head">
          <IconButton name="menu" label="Conversations" class="only-narrow" testid="menu" onClick={() => setSideOpen(true)} />
          {path.length > 0 ? (
            <h1 class="title" data-testid="title">
              {title ?? path[0]!.message}
            </h1>
          ) : (
            <span class="title" />
          )}
          <Connection />
        </header>
        <Transcript
          conversation={conversation}
          hasDocuments={!!offer?.takes_documents}
          hasAgents={!!offer && offer.agents.length > 1}
          mayDecide={me.scopes.includes("approve")}
          onAsk={ask}
          onSource={(source, from) => show({ kind: "source", source }, from)}
        />
        <div class="dock">
          <Composer
            offer={offer}
            agent={agent}
            isBusy={conversation.isBusy}
            isAnswering={running !== undefined}
            isStopping={!!running?.isStopping}
            uploads={uploads}
            focusKey={conversation.sessionId ?? "new"}
            onAgent={setAgent}
            onSend={ask}
            onStop={() => running && void conversation.stop(running)}
          />
        </div>
        <div class="unseen" role="status" data-testid="status">
          {last ? statusOf(last.view) : ""}
        </div>
      </main>
      {panel && (
        <aside class="panel" aria-label={panel.kind === "source" ? "Source" : "Documents"}>
          {panel.kind === "source" ? (
            <SourcePanel source={panel.source} onClose={closePanel} />
          ) : (
            <DocumentsPanel uploads={uploads} onOpen={(source) => setPanel({ kind: "source", source })} onClose={closePanel} />
          )}
        </aside>
      )}
      {isDropping && <div class="drop">Drop documents to add them</div>}
    </div>
  );
}

/** Says when the server is away, and that it is back. */
function Connection() {
  const [state, setState] = useState<ConnectionState | "back">("online");
  useEffect(() => {
    let quiet: ReturnType<typeof setTimeout> | undefined;
    return client.onConnection((now) => {
      clearTimeout(quiet);
      if (now !== "online") return setState(now);
      setState((before) => (before === "online" ? "online" : "back"));
      quiet = setTimeout(() => setState("online"), 2500);
    });
  }, []);
  const words = { online: "", back: "Connected again", connecting: "Connecting again…", offline: "The server is away. Trying again…" };
  return (
    <div class={`connection ${state}`} role="status" data-testid="connection" data-state={state}>
      {words[state]}
    </div>
  );
}

function useShortcuts(onEscape: () => void, onFind: () => void): void {
  const act = useRef({ onEscape, onFind });
  act.current = { onEscape, onFind };
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !event.defaultPrevented) act.current.onEscape();
      else if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        act.current.onFind();
        document.getElementById("find")?.focus();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

/** Files that are dragged over the page. */
function useDrop(onFiles: ((files: File[]) => void) | null): boolean {
  const [isOver, setOver] = useState(false);
  const take = useRef(onFiles);
  take.current = onFiles;
  useEffect(() => {
    const over = (event: DragEvent) => {
      if (!take.current || !event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent) => !event.relatedTarget && setOver(false);
    const drop = (event: DragEvent) => {
      setOver(false);
      if (!take.current || !event.dataTransfer?.files.length) return;
      event.preventDefault();
      take.current([...event.dataTransfer.files]);
    };
    addEventListener("dragover", over);
    addEventListener("dragleave", leave);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", drop);
    };
  }, []);
  return isOver;
}

render(<Gate>{(me, leave) => <Home me={me} onLeave={leave} />}</Gate>, document.getElementById("root")!);
