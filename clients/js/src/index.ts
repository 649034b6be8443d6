/** `@turnwire/client`: start, follow, stop and approve turns. */

export type { ClientTool, Handlers } from "./answers.js";
export * from "./api_types.js";
export { TurnwireClient } from "./client.js";
export type { ClientOptions } from "./client.js";
export type { Documents } from "./documents.js";
export type { Sessions } from "./sessions.js";
export type { RetryOptions } from "./retry.js";
export type { ConnectionDetail, ConnectionListener, ConnectionState } from "./connection.js";
export { TurnwireError } from "./errors.js";
export * from "./events.js";
export { TurnwireSocket } from "./socket.js";
export type { SocketTurn } from "./socket_turn.js";
export type { SocketOptions } from "./socket.js";
export { attachmentOf } from "./message_body.js";
export { splitStreamedText, TextSplitter } from "./text.js";
export type { TextCitation, TextEvent, TextPiece, TextSpan, TextTrailer } from "./text.js";
export type { FollowOptions, TurnHandle } from "./turn.js";
export { applyEvent, foldTurn } from "./fold.js";
export { viewOfSnapshot } from "./snapshot_view.js";
export { EMPTY_VIEW, sliceText } from "./view.js";
export type { InputView, QuestionView, StepView, TurnView } from "./view.js";
