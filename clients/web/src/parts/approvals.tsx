/** An approval request: the tool call with its arguments, which may be editable, and the decisions. */

import { useState } from "preact/hooks";
import type { ApprovalRequestEvent, Arguments } from "../../../js/src/index.ts";
import { fieldsOfArguments } from "../form.ts";
import { Icon } from "../icons.tsx";
import { client, errorText } from "../server.ts";
import { ValueForm } from "./form.tsx";
import { ArgumentList } from "./steps.tsx";

export function Approval({
  turnId,
  request,
  mayDecide,
}: {
  turnId: string;
  request: ApprovalRequestEvent;
  mayDecide: boolean;
}) {
  const [reason, setReason] = useState("");
  const [isEditing, setEditing] = useState(false);
  const [deciding, setDeciding] = useState<boolean | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const allow = (editedArgs: unknown) =>
    client.decide(turnId, request.call_id, {
      approved: true,
      args: request.args,
      edited_args: editedArgs as Arguments,
      ...(reason.trim() ? { reason: reason.trim() } : {}),
    });
  const decide = async (approved: boolean) => {
    setDeciding(approved);
    setProblem(null);
    try {
      // With the shown arguments: the server refuses the decision if they have changed.
      const decision = { approved, args: request.args, ...(reason.trim() ? { reason: reason.trim() } : {}) };
      await client.decide(turnId, request.call_id, decision);
    } catch (error) {
      setProblem(errorText(error));
      setDeciding(null);
    }
  };
  return (
    <section class="approval" data-testid="approval" aria-label={`Decide about ${request.tool}`}>
      <h3>
        <Icon name="hand" /> Allow <code>{request.tool}</code> to run?
      </h3>
      {request.reason && <p>{request.reason}</p>}
      {!isEditing && <ArgumentList args={request.args} />}
      {mayDecide && isEditing && (
        <ValueForm
          testId="arguments"
          fields={fieldsOfArguments(request.args)}
          submit={["Allow with these", "Allowing…"]}
          onSubmit={async (value) => void (await allow(value))}
          other={["Back", async () => setEditing(false)]}
        />
      )}
      {isEditing ? null : mayDecide ? (
        <>
          <label class="field">
            <span>Message to the agent (optional)</span>
            <input value={reason} onInput={(event) => setReason(event.currentTarget.value)} maxLength={2000} />
          </label>
          <div class="row">
            <button
              type="button"
              class="primary"
              data-testid="approve"
              disabled={deciding !== null}
              onClick={() => decide(true)}
            >
              {deciding === true ? "Allowing…" : "Allow"}
            </button>
            <button
              type="button"
              class="secondary"
              data-testid="deny"
              disabled={deciding !== null}
              onClick={() => decide(false)}
            >
              {deciding === false ? "Denying…" : "Deny"}
            </button>
            {request.editable && Object.keys(request.args).length > 0 && (
              <button
                type="button"
                class="secondary"
                data-testid="edit-arguments"
                disabled={deciding !== null}
                onClick={() => setEditing(true)}
              >
                Edit
              </button>
            )}
          </div>
        </>
      ) : (
        <p class="faint">Your key cannot approve tool calls. Ask someone whose key can.</p>
      )}
      {problem && (
        <p role="alert" class="problem">
          {problem}
        </p>
      )}
    </section>
  );
}
