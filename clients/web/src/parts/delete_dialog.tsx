/** The question whether a conversation is to be deleted. */

import { useRef, useState } from "preact/hooks";
import type { Session } from "../../../js/src/index.ts";
import { errorText } from "../server.ts";
import type { SessionList } from "../sessions.ts";

export function DeleteDialog({
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
