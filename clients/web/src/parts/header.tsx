/** The head of a conversation: its title, its agent, and a menu to share, export, inspect and delete it. */

import { useEffect, useState } from "preact/hooks";
import { copyText } from "../clipboard.ts";
import type { Conversation } from "../conversation.ts";
import { exportJson, exportMarkdown } from "../export.ts";
import { focusFirst } from "../focus.ts";
import { IconButton } from "../icons.tsx";
import { errorText, fetchFeatures, hideFeature, isStatus, turnAddress } from "../server.ts";
import { type Reach, ReachPill } from "./connection.tsx";
import { Menu, type MenuItem } from "./menu.tsx";

interface HeaderProps {
  conversation: Conversation;
  title: string;
  agent: string | undefined;
  reach: Reach;
  onMenu: () => void;
  onRename: (title: string) => void;
  onDelete: () => void;
}

export function Header({ conversation, title, agent, reach, onMenu, onRename, onDelete }: HeaderProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const [notice, setNotice] = useState<string | null>(null);
  const [isShareable, setShareable] = useState(false);
  useEffect(() => void fetchFeatures().then(({ share }) => setShareable(share)), []);
  useEffect(() => (setDraft(null), setNotice(null)), [conversation]);
  const { sessionId, path } = conversation;
  const hasTitle = title !== "" && path.length > 0;
  const save = () => {
    const text = draft?.trim();
    setDraft(null);
    if (text && text !== title) onRename(text);
  };
  const tell = (text: string) => {
    setNotice(text);
    setTimeout(() => setNotice((now) => (now === text ? null : now)), 4000);
  };
  const attempt = (work: Promise<string>) =>
    void work.then(tell, (error: unknown) => {
      if (isStatus(error, 404) && isShareable) (hideFeature("share"), setShareable(false));
      tell(errorText(error));
    });
  const share = async () => {
    const address = await conversation.share();
    return (await copyText(address)) ? "Link copied. Anybody who has it can read this." : `Link: ${address}`;
  };
  const unshare = async () => {
    await conversation.unshare();
    return "The links no longer work.";
  };
  const lastTurn = path.findLast((entry) => entry.turnId)?.turnId;
  const items: (MenuItem | false)[] = [
    { icon: "edit", text: "Rename", testid: "title-rename", onPick: () => setDraft(title) },
    isShareable && { icon: "share", text: "Copy a link to share", testid: "share", onPick: () => attempt(share()) },
    isShareable &&
      conversation.isShared && { icon: "close", text: "Stop sharing", testid: "unshare", onPick: () => attempt(unshare()) },
    { icon: "save", text: "Export as Markdown", testid: "export-markdown", onPick: () => void exportMarkdown(title, path) },
    {
      icon: "save",
      text: "Export as JSON",
      testid: "export-json",
      onPick: () => attempt(exportJson(title, sessionId!).then(() => "Exported.")),
    },
    !!lastTurn && { icon: "wave", text: "Inspect the last turn", testid: "title-inspect", href: turnAddress(lastTurn) },
    { icon: "trash", text: "Delete", testid: "title-delete", isDangerous: true, onPick: onDelete },
  ];
  return (
    <header class="main-head">
      <IconButton name="menu" label="Conversations" class="only-narrow" testid="menu" onClick={onMenu} />
      {!hasTitle ? (
        <span class="title" />
      ) : draft === null ? (
        <h1 class="title">
          <button type="button" data-testid="title" title="Rename" onClick={() => setDraft(title)}>
            {title}
          </button>
        </h1>
      ) : (
        <input
          class="title-box"
          aria-label="Title of the conversation"
          data-testid="title-box"
          ref={focusFirst}
          value={draft}
          maxLength={200}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onBlur={save}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.isComposing) save();
            else if (event.key === "Escape") (event.stopPropagation(), setDraft(null));
          }}
        />
      )}
      {notice && (
        <span class="notice" role="status" data-testid="notice">
          {notice}
        </span>
      )}
      {hasTitle && agent && (
        <span class="badge" data-testid="title-agent">
          {agent}
        </span>
      )}
      <ReachPill reach={reach} />
      {hasTitle && sessionId && (
        <Menu
          label="Actions for this conversation"
          testid="title-menu"
          items={items.filter((item): item is MenuItem => !!item)}
        />
      )}
    </header>
  );
}
