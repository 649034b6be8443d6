/** `@turnwire/client`: start turns, follow them through every drop, stop them, decide for them. */

export * from "./answers.js";
export { TurnwireClient } from "./client.js";
export type { ClientOptions } from "./client.js";
export type { Documents } from "./documents.js";
export type { Sessions } from "./sessions.js";
export type { RetryOptions } from "./waiting.js";
export type { ConnectionDetail, ConnectionListener, ConnectionState } from "./connection.js";
export { TurnwireError } from "./errors.js";
export * from "./events.js";
export { TurnwireSocket } from "./socket.js";
export type { SocketTurn } from "./socket_turn.js";
export type { SocketOptions } from "./socket.js";
export { splitStreamedText, TextSplitter } from "./text.js";
export type { TextCitation, TextEvent, TextPiece, TextSpan, TextTrailer } from "./text.js";
export type { FollowOptions, TurnHandle } from "./turn.js";
export { applyEvent, foldTurn } from "./folding.js";
export { viewOfSnapshot } from "./restoring.js";
export { EMPTY_VIEW, sliceText } from "./view.js";
export type { StepView, TurnView } from "./view.js";
