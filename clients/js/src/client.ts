/** A client of a Turnwire server: everything but reading the streams is here. */

import type {
  Agent,
  Budget,
  Decision,
  DocumentPage,
  DocumentText,
  Session,
  SessionExport,
  SessionPage,
  SessionWithTurns,
  Snapshot,
  StartOptions,
  TurnwireDocument,
} from "./answers.js";
import type { ConnectionListener, ConnectionState } from "./connection.js";
import type { Followed } from "./events.js";
import type { TurnwireSocket } from "./socket.js";
import type { FollowOptions, TurnHandle } from "./turn.js";

export interface RetryOptions {
  /** Milliseconds before the first new try; doubled each time, with jitter. Default 250. */
  first?: number;
  /** The longest time between two tries. Default 10 000. */
  most?: number;
  /** How often a request is tried before its error is thrown. Default 5. */
  attempts?: number;
  /** How often in a row a stream is opened in vain before its error is thrown. Default: for ever. */
  streamAttempts?: number;
  /** Milliseconds between the server's heartbeats; a stream that is silent for 2.5 of them is opened again. Default 15 000. */
  heartbeat?: number;
}

export interface ClientOptions {
  /** Where the server is; "" is where the page comes from. */
  url?: string;
  /** An API key, or how to get it each time it is needed. */
  key?: string | (() => string | undefined);
  fetch?: typeof fetch;
  credentials?: RequestCredentials;
  retry?: RetryOptions;
  /** For Node 20, which has none of its own, and for tests. */
  WebSocket?: typeof WebSocket;
}

export interface Sessions {
  create(options?: { id?: string; title?: string }): Promise<Session>;
  list(options?: { search?: string; before?: string; limit?: number }): Promise<SessionPage>;
  get(id: string): Promise<SessionWithTurns>;
  rename(id: string, title: string): Promise<Session>;
  delete(id: string): Promise<void>;
  export(id: string): Promise<SessionExport>;
}

export interface Documents {
  list(options?: { search?: string; after?: string; limit?: number }): Promise<DocumentPage>;
  /** The whole text; with both offsets of a citation, the passage and what stands around it. */
  get(id: string, passage?: { start: number; end: number }): Promise<DocumentText>;
  /** `onProgress` hears of fractions from 0 to 1, where the platform can tell (browsers). */
  upload(
    file: Blob & { name?: string },
    onProgress?: (fraction: number) => void,
    options?: { name?: string; signal?: AbortSignal },
  ): Promise<TurnwireDocument>;
  delete(id: string): Promise<void>;
}

export declare class TurnwireClient {
  readonly sessions: Sessions;
  readonly documents: Documents;
  readonly connection: ConnectionState;
  constructor(options?: ClientOptions);
  /** Starts a turn; resolves when the server has taken it. */
  start(options: StartOptions): Promise<TurnHandle>;
  /** A turn that is there. */
  turn(turnId: string): TurnHandle;
  snapshot(turnId: string): Promise<Snapshot>;
  cancel(turnId: string): Promise<Snapshot>;
  decide(turnId: string, callId: string, decision: Decision): Promise<Snapshot>;
  /** All turns of a session in one stream, whole and in order, also those that are started elsewhere; it does not end. */
  followSession(sessionId: string, options?: FollowOptions): AsyncGenerator<Followed, void, undefined>;
  agents(): Promise<Agent[]>;
  budget(): Promise<Budget>;
  /** Any other JSON route, with the key, retries and errors of all others. */
  request<Answer>(method: string, path: string, body?: unknown): Promise<Answer>;
  /** Returns how to stop listening. */
  onConnection(listener: ConnectionListener): () => void;
  socket(): TurnwireSocket;
}
