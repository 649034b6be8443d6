/** The question of a turn: shown, edited or removed, with its versions. */

import { useState } from "preact/hooks";
import type { AttachedFile } from "../../../js/src/index.ts";
import type { Conversation } from "../conversation.ts";
import type { Entry } from "../entries.ts";
import { focusFirst } from "../focus.ts";
import { IconButton } from "../icons.tsx";
import { AttachedFiles } from "./attachments.tsx";
import { isEnter } from "./composer.tsx";

export interface QuestionProps {
  entry: Entry;
  conversation: Conversation;
  /** The index of this version, and the number of versions. */
  version: number;
  versions: number;
}

export function Question({ entry, conversation, version, versions }: QuestionProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const save = () => {
    const message = draft?.trim();
    setDraft(null);
    if (message) void conversation.send(message, entry.agent, entry.parent ?? "", undefined, entry.attachments);
  };
  if (draft !== null) {
    return (
      <form class="asked editing" onSubmit={(event) => (event.preventDefault(), save())}>
        <textarea
          class="edit"
          aria-label="Edit your message"
          data-testid="edit-box"
          ref={focusFirst}
          value={draft}
          rows={Math.min(12, draft.split("\n").length + 1)}
          onInput={(event) => setDraft(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") (event.stopPropagation(), setDraft(null));
            else if (isEnter(event)) (event.preventDefault(), save());
          }}
        />
        <div class="row end">
          <button type="button" class="secondary" onClick={() => setDraft(null)}>
            Cancel
          </button>
          <button type="submit" class="primary" data-testid="edit-send" disabled={!draft.trim()}>
            Send
          </button>
        </div>
      </form>
    );
  }
  const removeButton = (
    <IconButton name="close" label="Remove this message" testid="unqueue" onClick={() => conversation.stop(entry)} />
  );
  return (
    <article class="asked" aria-label="Your message">
      <AttachedFiles files={entry.attachments as AttachedFile[]} sessionId={conversation.sessionId} />
      {entry.message && (
        <div class="bubble" data-testid="message">
          {entry.message}
        </div>
      )}
      <div class="asked-foot">
        {entry.phase === "sending" && <span class="faint">{entry.problem ? "Waiting for the server…" : "Sending…"}</span>}
        {entry.phase === "sending" && entry.problem && removeButton}
        {entry.phase === "queued" && (
          <>
            <span class="badge">{entry.onBusy === "steer" ? "Waits for the next step" : "Queued"}</span>
            {removeButton}
          </>
        )}
        {entry.phase === "refused" && (
          <>
            <span role="alert" class="problem">
              Not sent. {entry.problem}
            </span>
            <button type="button" class="quiet" onClick={() => conversation.resend(entry)}>
              Send again
            </button>
          </>
        )}
        {versions > 1 && <Versions entry={entry} conversation={conversation} version={version} versions={versions} />}
        {(entry.phase === "ended" || entry.phase === "refused") && (
          <span class="tools">
            <IconButton name="edit" label="Edit and send again" testid="edit" onClick={() => setDraft(entry.message)} />
          </span>
        )}
      </div>
    </article>
  );
}

function Versions({ entry, conversation, version, versions }: QuestionProps) {
  const go = (step: number) => conversation.choose(conversation.siblings(entry)[version + step]!);
  return (
    <span class="places" role="group" aria-label="Versions">
      <IconButton name="left" label="Previous version" disabled={version === 0} onClick={() => go(-1)} />
      <span data-testid="version">
        {version + 1} / {versions}
      </span>
      <IconButton name="chevron" label="Next version" disabled={version === versions - 1} onClick={() => go(1)} />
    </span>
  );
}
