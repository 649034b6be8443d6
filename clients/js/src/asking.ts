/** How a message is put to the server. */

import type { StartOptions } from "./answers.js";

/** In the words of the wire. */
export function messageBody(options: Omit<StartOptions, "signal" | "idempotencyKey">): Record<string, unknown> {
  const { message, sessionId, agent, turnId, parentTurnId, onBusy, onDisconnect, review, answer, attachments } = options;
  return {
    message,
    session_id: sessionId,
    agent,
    turn_id: turnId,
    parent_turn_id: parentTurnId,
    on_busy: onBusy,
    on_disconnect: onDisconnect,
    review,
    answer,
    attachments,
  };
}

/** Also where `crypto.randomUUID` is missing, as on a page that came by plain HTTP. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
