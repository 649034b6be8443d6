/** The page: the list of sessions, the conversation, and a panel with a document. */

import { render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Session } from "../../js/src/index.ts";
import { Conversation } from "./conversation.ts";
import { forgetDrafts } from "./drafts.ts";
import { useObservable } from "./observable.ts";
import { SourcePanel } from "./parts/document.tsx";
import { DeleteDialog } from "./parts/delete_dialog.tsx";
import { DocumentsPanel } from "./parts/documents.tsx";
import { Gate } from "./parts/gate.tsx";
import { Main } from "./parts/main.tsx";
import { SchedulesPanel } from "./parts/schedules.tsx";
import { Sidebar } from "./parts/sidebar.tsx";
import type { Source } from "./parts/sources.tsx";
import { Uploads } from "./parts/uploads.tsx";
import { isStatus, logOut, type Me, type Offer, root, sessionAddress, fetchOffer } from "./server.ts";
import { SessionList } from "./sessions.ts";

type Panel = { kind: "source"; source: Source } | { kind: "documents" } | { kind: "schedules" } | null;

const PANEL_NAMES = { source: "Source", documents: "Documents", schedules: "Schedules" };

const sessionInAddress = (): string | null => new URLSearchParams(location.search).get("session");

function Home({ me, onLeave }: { me: Me; onLeave: () => void }) {
  const list = useObservable(useMemo(() => new SessionList(), []));
  const uploads = useMemo(() => new Uploads(), []);
  const [offer, setOffer] = useState<Offer | null>(null);
  const [panel, setPanel] = useState<Panel>(null);
  const [deleting, setDeleting] = useState<Session | null>(null);
  const [isSideOpen, setSideOpen] = useState(false);
  const opener = useRef<HTMLElement | null>(null);
  const [, setBegun] = useState("");

  const open = useCallback((sessionId: string | null) => {
    return new Conversation(sessionId, {
      created: (id) => {
        history.replaceState(null, "", sessionAddress(id));
        setBegun(id);
      },
      updated: () => list.refresh(),
      unauthorized: onLeave,
    });
  }, []);
  const [conversation, setConversation] = useState(() => open(sessionInAddress()));
  const shown = useRef(conversation);
  shown.current = conversation;
  const pick = useCallback((sessionId: string | null, isBack = false) => {
    setConversation((now) => {
      if (sessionId !== null && now.sessionId === sessionId && !now.problem) return now;
      now.close();
      return open(sessionId);
    });
    if (!isBack) history.pushState(null, "", sessionId ? sessionAddress(sessionId) : `${root}/`);
    setSideOpen(false);
    setPanel((now) => (now?.kind === "source" ? null : now));
  }, []);

  useEffect(() => {
    list.refresh(0);
    fetchOffer().then(setOffer, (error: unknown) => isStatus(error, 401) && onLeave());
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
  useShortcuts(
    () => (panel ? closePanel() : setSideOpen(false)),
    () => setSideOpen(true),
  );
  const current = conversation.sessionId;
  const session = list.sessions?.find(({ id }) => id === current) ?? conversation.session;
  return (
    <div class={`app ${isSideOpen ? "side-open" : ""} ${panel ? "panel-open" : ""}`}>
      <a class="skip" href="#composer">
        Skip to the message box
      </a>
      <Sidebar
        list={list}
        current={current}
        me={me}
        hasDocuments={!!offer?.takes_documents}
        onPick={pick}
        onDocuments={() => show({ kind: "documents" })}
        onSchedules={() => show({ kind: "schedules" })}
        onDelete={setDeleting}
        onLogOut={() => (forgetDrafts(), void logOut().finally(onLeave))}
        onClose={() => setSideOpen(false)}
      />
      {isSideOpen && <div class="shade" onClick={() => setSideOpen(false)} />}
      <Main
        conversation={conversation}
        title={session?.title ?? null}
        offer={offer}
        me={me}
        uploads={uploads}
        onMenu={() => setSideOpen(true)}
        onRename={(title) => {
          if (conversation.session) conversation.session = { ...conversation.session, title };
          if (current) void list.rename(current, title).catch(() => list.refresh());
        }}
        onDelete={() => session && setDeleting(session)}
        onSource={(source, from) => show({ kind: "source", source }, from)}
      />
      {panel && (
        <aside class="panel" aria-label={PANEL_NAMES[panel.kind]}>
          {panel.kind === "source" && <SourcePanel source={panel.source} onClose={closePanel} />}
          {panel.kind === "documents" && (
            <DocumentsPanel
              uploads={uploads}
              onOpen={(source) => setPanel({ kind: "source", source })}
              onClose={closePanel}
            />
          )}
          {panel.kind === "schedules" && (
            <SchedulesPanel
              offer={offer}
              sessionId={current}
              mayWrite={me.scopes.includes("write")}
              onPick={pick}
              onClose={closePanel}
            />
          )}
        </aside>
      )}
      {deleting && (
        <DeleteDialog
          session={deleting}
          list={list}
          onDeleted={(id) => id === shown.current.sessionId && pick(null)}
          onClose={() => setDeleting(null)}
        />
      )}
      {isDropping && <div class="drop">Drop documents to add them</div>}
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

/** Accepts files that are dropped on the page; returns true while they are dragged over it. */
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
      // The message box has taken them.
      if (event.defaultPrevented || !take.current || !event.dataTransfer?.files.length) return;
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
