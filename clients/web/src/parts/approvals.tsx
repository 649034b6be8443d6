/** A tool call that waits for a person: what exactly would run, and the two answers. */

import { useState } from "preact/hooks";
import type { ApprovalRequestEvent } from "../../../js/src/index.ts";
import { Icon } from "../icons.tsx";
import { client, told } from "../server.ts";
import { Json } from "./steps.tsx";

export function Approval({
  turnId,
  asked,
  mayDecide,
}: {
  turnId: string;
  asked: ApprovalRequestEvent;
  mayDecide: boolean;
}) {
  const [reason, setReason] = useState("");
  const [deciding, setDeciding] = useState<boolean | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const decide = async (approved: boolean) => {
    setDeciding(approved);
    setProblem(null);
    try {
      // Bound to what was shown: if the arguments have become others, the server says no.
      const decision = { approved, args: asked.args, ...(reason.trim() ? { reason: reason.trim() } : {}) };
      await client.decide(turnId, asked.call_id, decision);
    } catch (error) {
      setProblem(told(error));
      setDeciding(null);
    }
  };
  return (
    <section class="approval" data-testid="approval" aria-label={`Decide about ${asked.tool}`}>
      <h3>
        <Icon name="hand" /> May <code>{asked.tool}</code> run?
      </h3>
      {asked.reason && <p>{asked.reason}</p>}
      <Json label="With exactly these arguments" value={asked.args} />
      {mayDecide ? (
        <>
          <label class="field">
            <span>A word to the agent (optional)</span>
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
          </div>
        </>
      ) : (
        <p class="faint">Your key may not approve; somebody whose key may has to decide.</p>
      )}
      {problem && (
        <p role="alert" class="problem">
          {problem}
        </p>
      )}
    </section>
  );
}
