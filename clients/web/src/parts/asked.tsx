/** What was asked: shown, edited, taken back, and leafed through where there is more than one version of it. */

import { useState } from "preact/hooks";
import type { Conversation } from "../conversation.ts";
import type { Entry } from "../entries.ts";
import { focusFirst } from "../focusing.ts";
import { IconButton } from "../icons.tsx";
import { isEnter } from "./composer.tsx";

export interface AskedProps {
  entry: Entry;
  conversation: Conversation;
  /** Which one this is of those that stand at this place, and how many they are. */
  place: number;
  places: number;
}

export function Asked({ entry, conversation, place, places }: AskedProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const save = () => {
    const message = draft?.trim();
    setDraft(null);
    if (message) void conversation.send(message, entry.agent, entry.parent ?? "");
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
            Ask this instead
          </button>
        </div>
      </form>
    );
  }
  const takeBack = (
    <IconButton name="close" label="Take this message back" testid="unqueue" onClick={() => conversation.stop(entry)} />
  );
  return (
    <article class="asked" aria-label="You asked">
      <div class="bubble" data-testid="message">
        {entry.message}
      </div>
      <div class="asked-foot">
        {entry.phase === "sending" && <span class="faint">{entry.problem ? "Waits for the server…" : "Sending…"}</span>}
        {entry.phase === "sending" && entry.problem && takeBack}
        {entry.phase === "queued" && (
          <>
            <span class="badge">Queued</span>
            {takeBack}
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
        {places > 1 && <Places entry={entry} conversation={conversation} place={place} places={places} />}
        {(entry.phase === "ended" || entry.phase === "refused") && (
          <span class="tools">
            <IconButton name="edit" label="Edit and ask again" testid="edit" onClick={() => setDraft(entry.message)} />
          </span>
        )}
      </div>
    </article>
  );
}

function Places({ entry, conversation, place, places }: AskedProps) {
  const go = (step: number) => conversation.choose(conversation.siblings(entry)[place + step]!);
  return (
    <span class="places" role="group" aria-label="Versions">
      <IconButton name="left" label="Version before" disabled={place === 0} onClick={() => go(-1)} />
      <span data-testid="version">
        {place + 1} / {places}
      </span>
      <IconButton name="chevron" label="Next version" disabled={place === places - 1} onClick={() => go(1)} />
    </span>
  );
}
