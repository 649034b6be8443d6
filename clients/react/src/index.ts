/** `@turnwire/react`: turns and sessions as React state. */

export { TurnwireProvider, useConnection, useTurnwireClient } from "./provider.js";
export { useSession } from "./session.js";
export type { SessionOptions, LiveSession } from "./session.js";
export { useTurn } from "./turn.js";
export type { LiveTurn } from "./turn.js";
