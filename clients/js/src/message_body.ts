/** The body of a message, and random ids. */

import type { Attachment, StartOptions } from "./api_types.js";

/** As many arguments as a function call takes in every engine. */
const PIECE = 32_768;

/** Returns the options under the server's field names. */
export function messageBody(options: Omit<StartOptions, "signal" | "idempotencyKey">): Record<string, unknown> {
  const { message, sessionId, agent, turnId, parentTurnId, onBusy, onDisconnect, review, answer, attachments } = options;
  const { metadata, tools, modelOptions } = options;
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
    metadata,
    tools: tools?.map(({ name, description, parameters }) => ({ name, description, parameters })),
    model_options: modelOptions,
  };
}

/** Returns a file, such as one of an `<input type="file">`, as an attachment of a message. */
export async function attachmentOf(file: Blob & { name?: string }): Promise<Attachment> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const pieces: string[] = [];
  for (let start = 0; start < bytes.length; start += PIECE) {
    pieces.push(String.fromCharCode(...bytes.subarray(start, start + PIECE)));
  }
  const named = file.name ? { name: file.name.slice(-255) } : {};
  return { media_type: file.type || "application/octet-stream", data: btoa(pieces.join("")), ...named };
}

/** Returns a random id, also on plain HTTP pages, which have no `crypto.randomUUID`. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
