/** The body of a message, and random ids. */

import type { StartOptions } from "./api_types.js";

/** Returns the options under the server's field names. */
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

/** Returns a random id, also on plain HTTP pages, which have no `crypto.randomUUID`. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
