/** The message box, also usable while a turn runs. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Attachment } from "../../../js/src/index.ts";
import { accepts, type PendingFile, pendingFiles } from "../attachments.ts";
import type { Conversation } from "../conversation.ts";
import type { OnBusy } from "../entries.ts";
import { loadDraft, saveDraft } from "../drafts.ts";
import { Icon, IconButton } from "../icons.tsx";
import type { Offer } from "../server.ts";
import { PendingFiles } from "./attachments.tsx";
import { type Uploads, UploadList } from "./uploads.tsx";

interface ComposerProps {
  offer: Offer | null;
  agent: string | undefined;
  isBusy: boolean;
  isStopping: boolean;
  isAnswering: boolean;
  uploads: Uploads;
  conversation: Conversation;
  onAgent: (agent: string) => void;
  onSend: (message: string, onBusy: OnBusy, attachments: Attachment[]) => void;
  onStop: () => void;
}

/** Returns true for Enter, except while an input method composes (key code 229 in old browsers). */
export function isEnter(event: KeyboardEvent): boolean {
  return event.key === "Enter" && !event.shiftKey && !event.altKey && !event.isComposing && event.keyCode !== 229;
}

export function Composer(props: ComposerProps) {
  const { offer, agent, isBusy, isAnswering, isStopping, uploads, onSend, onStop } = props;
  const [draft, setDraft] = useDraft(props.conversation);
  const box = useRef<HTMLTextAreaElement>(null);
  const files = useRef<HTMLInputElement>(null);
  const [onBusy, setOnBusy] = useState<OnBusy>("steer");
  const attached = useRef<HTMLInputElement>(null);
  const [pending, setPending] = useState<PendingFile[]>([]);
  const answering = offer?.agents.find(({ name, is_default }) => (agent ? name === agent : is_default));
  /** Attaches the files that the agent takes, and adds the others as documents; returns false if there are none. */
  const take = (chosen: File[]): boolean => {
    const fitting = chosen.filter((file) => accepts(answering, file.type));
    const others = chosen.filter((file) => !fitting.includes(file));
    if (fitting.length) void pendingFiles(fitting).then((files) => setPending((now) => [...now, ...files]));
    if (others.length && offer?.takes_documents) uploads.add(others);
    return fitting.length > 0 || (others.length > 0 && !!offer?.takes_documents);
  };
  useEffect(() => setPending([]), [props.conversation]);
  useEffect(() => {
    // Not on phones, where the keyboard would hide half of the page.
    if (matchMedia("(hover: hover)").matches) box.current?.focus();
  }, [props.conversation, props.conversation.sessionId]);
  useEffect(() => {
    const area = box.current!;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [draft]);
  const send = () => {
    const message = draft.trim();
    if (!message && !pending.length) return;
    setDraft("");
    setPending([]);
    uploads.forget();
    const files = pending.map(({ file }) => file);
    // A message with files does not enter a running turn.
    onSend(message, isBusy ? (files.length && onBusy === "steer" ? "enqueue" : onBusy) : "enqueue", files);
    box.current?.focus();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => (event.preventDefault(), send())}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        if (take([...(event.dataTransfer?.files ?? [])])) event.preventDefault();
      }}
    >
      <UploadList uploads={uploads} />
      <PendingFiles files={pending} onRemove={(key) => setPending(pending.filter((file) => file.key !== key))} />
      <textarea
        ref={box}
        id="composer"
        data-testid="composer"
        aria-label="Your message"
        aria-describedby="composer-hint"
        rows={1}
        value={draft}
        placeholder={isBusy ? PLACEHOLDERS[onBusy] : "Ask a question"}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onPaste={(event) => {
          if (take([...(event.clipboardData?.files ?? [])])) event.preventDefault();
        }}
        onKeyDown={(event) => {
          if (isEnter(event)) (event.preventDefault(), send());
        }}
      />
      <div class="composer-foot">
        {answering?.takes_attachments && (
          <>
            <IconButton name="clip" label="Attach files" testid="attach" onClick={() => attached.current?.click()} />
            <input
              ref={attached}
              type="file"
              multiple
              hidden
              accept={answering.attachment_types?.join(",")}
              data-testid="attach-input"
              aria-label="Files to attach"
              onChange={(event) => {
                take([...(event.currentTarget.files ?? [])]);
                event.currentTarget.value = "";
              }}
            />
          </>
        )}
        {offer?.takes_documents && (
          <>
            <IconButton name="clip" label="Add documents" testid="upload" onClick={() => files.current?.click()} />
            <input
              ref={files}
              type="file"
              multiple
              hidden
              data-testid="upload-input"
              aria-label="Documents to add"
              onChange={(event) => {
                uploads.add([...(event.currentTarget.files ?? [])]);
                event.currentTarget.value = "";
              }}
            />
          </>
        )}
        {offer && offer.agents.length > 1 && (
          <label class={`agent-choice ${isBusy ? "when-idle" : ""}`}>
            <span class="unseen">Agent</span>
            <select
              data-testid="agent"
              title={offer.agents.find(({ name }) => name === agent)?.description ?? undefined}
              value={agent ?? ""}
              onChange={(event) => props.onAgent(event.currentTarget.value)}
            >
              {offer.agents.map(({ name, description }) => (
                <option key={name} value={name}>
                  {name === agent || !description ? name : `${name}: ${clipped(description)}`}
                </option>
              ))}
            </select>
          </label>
        )}
        <span class="hint" id="composer-hint">
          {draft ? "Enter to send · Shift + Enter for a new line" : ""}
        </span>
        {isBusy && (
          <label class="agent-choice">
            <span class="unseen">While it works</span>
            <select
              data-testid="on-busy"
              title="What happens to a message that you send while it works"
              value={onBusy}
              onChange={(event) => setOnBusy(event.currentTarget.value as OnBusy)}
            >
              {Object.entries(LABELS).map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </select>
          </label>
        )}
        {isAnswering && (
          <button type="button" class="stop" data-testid="stop" disabled={isStopping} onClick={onStop}>
            <Icon name="stop" /> {isStopping ? "Stopping…" : "Stop"}
          </button>
        )}
        <button
          type="submit"
          class="send"
          data-testid="send"
          disabled={!draft.trim() && !pending.length}
          aria-label={isBusy ? LABELS[onBusy] : "Send"}
          title={isBusy ? LABELS[onBusy] : "Send"}
        >
          <Icon name="send" />
        </button>
      </div>
    </form>
  );
}

const LABELS: Record<OnBusy, string> = { steer: "Add to this answer", enqueue: "Queue", interrupt: "Interrupt" };
const PLACEHOLDERS: Record<OnBusy, string> = {
  steer: "Add to this answer: it is read at the next step",
  enqueue: "Ask the next question; it will be queued",
  interrupt: "Stop this answer and ask something else",
};

const clipped = (text: string): string => (text.length > 70 ? `${text.slice(0, 69)}…` : text);

/** The draft of a conversation. That of a new one moves to its session when the server has created it. */
function useDraft(conversation: Conversation): [string, (text: string) => void] {
  const key = conversation.sessionId ?? "new";
  const [state, setState] = useState({ conversation, text: loadDraft(key) });
  const text = state.conversation === conversation ? state.text : loadDraft(key);
  useEffect(() => {
    if (state.conversation !== conversation || !text || key === "new") return;
    saveDraft("new", "");
    saveDraft(key, text);
  }, [key]);
  const write = (next: string) => {
    saveDraft(key, next);
    setState({ conversation, text: next });
  };
  return [text, write];
}
