/** The sidebar with the list of sessions. */

import { h } from "preact";
import { useRef, useState } from "preact/hooks";
import { brand } from "../brand.ts";
import type { Session } from "../../../js/src/index.ts";
import { focusFirst } from "../focus.ts";
import { Icon, IconButton, Logo } from "../icons.tsx";
import { type Me, sessionAddress, errorText } from "../server.ts";
import type { SessionList } from "../sessions.ts";
import { period } from "../format.ts";
import { ThemeButton } from "./theme.tsx";

interface SidebarProps {
  list: SessionList;
  current: string | null;
  me: Me | null;
  hasDocuments: boolean;
  onPick: (id: string | null) => void;
  onDocuments: () => void;
  onDeleted: (id: string) => void;
  onLogOut: () => void;
  onClose: () => void;
}

export function Sidebar(props: SidebarProps) {
  const { list, current, me, hasDocuments, onPick } = props;
  const { sessions, search, hasMore } = list;
  const [deleting, setDeleting] = useState<Session | null>(null);
  let lastPeriod = "";
  return (
    <nav class="side" id="side" aria-label="Conversations">
      <header class="side-head">
        <a class="brand" href={sessionAddress("").split("?")[0]} onClick={onPlainClick(() => onPick(null))}>
          <Logo /> {brand.name}
        </a>
        <IconButton name="close" label="Close the list" class="only-narrow" onClick={props.onClose} />
      </header>
      <button type="button" class="new" data-testid="new" onClick={() => onPick(null)}>
        <Icon name="plus" /> New conversation
      </button>
      <div class="find">
        <Icon name="search" />
        <input
          type="search"
          id="find"
          data-testid="find"
          aria-label="Search conversations"
          placeholder="Search"
          value={search}
          onInput={(event) => list.find(event.currentTarget.value)}
        />
      </div>
      <ul class="session-list" data-testid="sessions">
        {sessions?.map((session) => {
          const when = period(session.updated_at);
          const head = !search && when !== lastPeriod && (
            <li class="period" aria-hidden="true">
              {when}
            </li>
          );
          lastPeriod = when;
          return [
            head,
            <SessionItem
              key={session.id}
              session={session}
              isCurrent={session.id === current}
              {...props}
              onDelete={() => setDeleting(session)}
            />,
          ];
        })}
        {sessions && !sessions.length && (
          <li class="faint none">{search ? "Nothing found." : "No conversations yet."}</li>
        )}
        {hasMore && (
          <li>
            <button type="button" class="quiet" onClick={() => list.more()}>
              Show more
            </button>
          </li>
        )}
      </ul>
      <footer class="side-foot">
        {hasDocuments && (
          <button type="button" class="quiet" data-testid="documents-open" onClick={props.onDocuments}>
            <Icon name="book" /> Documents
          </button>
        )}
        <span class="spring" />
        {h("turnwire-notify", null)}
        <ThemeButton />
        {me?.logged_in && <IconButton name="out" label="Log out" testid="logout" onClick={props.onLogOut} />}
      </footer>
      {deleting && (
        <DeleteDialog session={deleting} list={list} onDeleted={props.onDeleted} onClose={() => setDeleting(null)} />
      )}
    </nav>
  );
}

interface ItemProps extends SidebarProps {
  session: Session;
  isCurrent: boolean;
  onDelete: () => void;
}

function SessionItem({ session, isCurrent, list, onPick, onDelete }: ItemProps) {
  const [title, setTitle] = useState<string | null>(null);
  const name = session.title ?? "New conversation";
  const save = async () => {
    const newTitle = title?.trim();
    setTitle(null);
    if (!newTitle || newTitle === name) return;
    await list.rename(session.id, newTitle).catch(() => list.refresh());
  };
  if (title !== null) {
    return (
      <li class="session renaming">
        <input
          aria-label="Title of the conversation"
          data-testid="rename-box"
          ref={focusFirst}
          value={title}
          maxLength={200}
          onInput={(event) => setTitle(event.currentTarget.value)}
          onBlur={save}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.isComposing) void save();
            else if (event.key === "Escape") (event.stopPropagation(), setTitle(null));
          }}
        />
      </li>
    );
  }
  return (
    <li class={`session ${isCurrent ? "current" : ""}`}>
      <a
        href={sessionAddress(session.id)}
        aria-current={isCurrent ? "page" : undefined}
        onClick={onPlainClick(() => onPick(session.id))}
        title={name}
      >
        {name}
      </a>
      <span class="tools">
        <IconButton name="edit" label={`Rename ${name}`} testid="rename" onClick={() => setTitle(name)} />
        <IconButton name="trash" label={`Delete ${name}`} testid="delete" onClick={onDelete} />
      </span>
    </li>
  );
}

function DeleteDialog({
  session,
  list,
  onDeleted,
  onClose,
}: {
  session: Session;
  list: SessionList;
  onDeleted: (id: string) => void;
  onClose: () => void;
}) {
  const [problem, setProblem] = useState<string | null>(null);
  const dialog = useRef<HTMLDialogElement | null>(null);
  const confirm = async () => {
    try {
      await list.delete(session.id);
      onDeleted(session.id);
      onClose();
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  const open = (element: HTMLDialogElement | null) => {
    dialog.current = element;
    if (element && !element.open) element.showModal();
  };
  return (
    <dialog
      ref={open}
      class="dialog"
      onKeyDown={(event) => event.stopPropagation()}
      aria-labelledby="delete-title"
      onClose={onClose}
      data-testid="delete-dialog"
    >
      <h2 id="delete-title">Delete this conversation?</h2>
      <p>
        <strong>{session.title ?? "New conversation"}</strong> and all its turns will be deleted. This cannot be
        undone.
      </p>
      {problem && (
        <p role="alert" class="problem">
          {problem}
        </p>
      )}
      <div class="row end">
        <button type="button" class="secondary" onClick={() => dialog.current?.close()}>
          Cancel
        </button>
        <button type="button" class="danger" data-testid="delete-confirm" onClick={confirm}>
          Delete
        </button>
      </div>
    </dialog>
  );
}

/** Handles plain clicks on a link; clicks that open a new tab keep their default. */
function onPlainClick(act: () => void): (event: MouseEvent) => void {
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    act();
  };
}
