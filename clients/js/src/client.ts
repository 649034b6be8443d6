/** The client: turns are started and joined here, and everything else has its door here. */

import type { Agent, Budget, Decision, EnqueueOptions, Me, Snapshot, StartOptions, TurnRecord } from "./answers.js";
import { messageBody, uuid } from "./asking.js";
import type { ConnectionListener, ConnectionState } from "./connection.js";
import { Documents } from "./documents.js";
import { TurnwireError } from "./errors.js";
import type { Followed } from "./events.js";
import { checkStream, follow, leavable } from "./follow.js";
import { Http, type HttpOptions } from "./http.js";
import { SessionPlace } from "./places.js";
import { sessionPath, Sessions } from "./sessions.js";
import { type FollowOptions, TurnHandle } from "./turn.js";
import { Lifeline } from "./waiting.js";

export type ClientOptions = HttpOptions;

export class TurnwireClient {
  readonly sessions: Sessions;
  readonly documents: Documents;
  /** For the other parts of this package. */
  readonly http: Http;

  constructor(options: ClientOptions = {}) {
    this.http = new Http(options);
    this.sessions = new Sessions(this.http);
    this.documents = new Documents(this.http);
  }

  /**
   * Starts a turn; resolves when the server has taken it. It is tried again after a failure, with one Idempotency-Key, so
   * it is never asked twice. The signal ends the trying, not the turn.
   */
  async start({ signal, idempotencyKey = uuid(), ...options }: StartOptions): Promise<TurnHandle> {
    const body = messageBody(options);
    const headers = { Accept: "text/event-stream", "Idempotency-Key": idempotencyKey };
    return this.http.persist({ signal, attempts: this.http.retry.attempts }, async () => {
      const line = new Lifeline(this.http.retry.heartbeat, signal);
      try {
        const asked = { method: "POST", path: "/chat/stream", body, headers };
        const response = checkStream(await line.heard(this.http.open(asked, line)));
        const turnId = response.headers.get("X-Turn-Id");
        const sessionId = response.headers.get("X-Session-Id");
        if (!turnId || !sessionId) throw new TurnwireError(0, "not_turnwire", "the answer does not name its turn");
        line.obey(undefined);
        return new TurnHandle(this.http, turnId, sessionId, { response, line });
      } catch (error) {
        line.cut();
        throw error;
      }
    });
  }

  /**
   * Starts a turn in a session that is there, and reads nothing of it: for those who follow the session. It is tried again
   * as a start is.
   */
  enqueue({ sessionId, idempotencyKey = uuid(), signal, ...options }: EnqueueOptions): Promise<TurnRecord> {
    const headers = { "Idempotency-Key": idempotencyKey };
    const path = `${sessionPath(sessionId)}/turns`;
    return this.http.json({ method: "POST", path, body: messageBody(options), headers, signal });
  }

  /** A turn that is there already. */
  turn(turnId: string): TurnHandle {
    return new TurnHandle(this.http, turnId);
  }

  /** What a turn has come to. */
  snapshot(turnId: string): Promise<Snapshot> {
    return this.turn(turnId).snapshot();
  }

  /** Resolves when the turn has stopped. */
  cancel(turnId: string): Promise<Snapshot> {
    return this.turn(turnId).cancel();
  }

  /** Allows or denies a tool call that a turn waits for. */
  decide(turnId: string, callId: string, decision: Decision): Promise<Snapshot> {
    return this.turn(turnId).decide(callId, decision);
  }

  /**
   * All turns of a session in one stream, each whole and in order, also those that are started elsewhere. It goes on until
   * it is left. `after` is the last `id` that you have.
   */
  followSession(
    sessionId: string,
    options: FollowOptions & { after?: string } = {},
  ): AsyncGenerator<Followed, void, undefined> {
    const path = `${sessionPath(sessionId)}/events`;
    return leavable(options.signal, (signal) => {
      const place = new SessionPlace(options.after);
      return follow(this.http, { path, place, endsWithDone: false, signal, onControl: options.onControl });
    });
  }

  /** Who can answer. */
  async agents(): Promise<Agent[]> {
    return (await this.request<{ agents: Agent[] }>("GET", "/v1/agents")).agents;
  }

  /** Who you are, also without a key. */
  me(): Promise<Me> {
    return this.request("GET", "/v1/me");
  }

  /** The tokens that you have used today. */
  budget(): Promise<Budget> {
    return this.request("GET", "/v1/budget");
  }

  /** Any other JSON route, with the key and the errors of all others. Only a GET is tried again. */
  request<Answer>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    const attempts = method === "GET" ? {} : { attempts: 1 };
    return this.http.json({ method, path, body, signal, ...attempts });
  }

  /** Whether the server can be reached, as far as is known. */
  get connection(): ConnectionState {
    return this.http.watch.state;
  }

  /** Returns how to stop listening. */
  onConnection(listener: ConnectionListener): () => void {
    return this.http.watch.listen(listener);
  }
}
