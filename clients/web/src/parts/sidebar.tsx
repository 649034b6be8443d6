/** The sidebar with the list of sessions. */

import { h } from "preact";
import { useState } from "preact/hooks";
import { brand } from "../brand.ts";
import type { Session } from "../../../js/src/index.ts";
import { focusFirst } from "../focus.ts";
import { Icon, IconButton, Logo } from "../icons.tsx";
import { type Me, sessionAddress } from "../server.ts";
import type { SessionList } from "../sessions.ts";
import { period } from "../format.ts";
import { Menu } from "./menu.tsx";
import { ThemeButton } from "./theme.tsx";

interface SidebarProps {
  list: SessionList;
  current: string | null;
  me: Me | null;
  hasDocuments: boolean;
  onPick: (id: string | null) => void;
  onDocuments: () => void;
  onSchedules: () => void;
  onDelete: (session: Session) => void;
  onLogOut: () => void;
  onClose: () => void;
}

export function Sidebar(props: SidebarProps) {
  const { list, current, me, hasDocuments, onPick } = props;
  const { sessions, search, hasMore } = list;
  let lastPeriod = "";
  return (
    <nav class="side" id="side" aria-label="Conversations">
      <header class="side-head">
        <a class="brand" href={sessionAddress("").split("?")[0]} onClick={onPlainClick(() => onPick(null))}>
          <Logo /> {brand.name}
        </a>
        <ThemeButton />
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
        <button type="button" class="quiet" data-testid="schedules-open" onClick={props.onSchedules}>
          <Icon name="clock" /> Schedules
        </button>
        <span class="side-icons">
          {h("turnwire-notify", null)}
          {me?.logged_in && <IconButton name="out" label="Log out" testid="logout" onClick={props.onLogOut} />}
        </span>
      </footer>
    </nav>
  );
}

interface ItemProps extends SidebarProps {
  session: Session;
  isCurrent: boolean;
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
        <Menu
          label={`Actions for ${name}`}
          testid="row-menu"
          items={[
            { icon: "edit", text: "Rename", testid: "rename", onPick: () => setTitle(name) },
            { icon: "trash", text: "Delete", testid: "delete", isDangerous: true, onPick: () => onDelete(session) },
          ]}
        />
      </span>
    </li>
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
