/** The client: starts and joins turns, and gives access to everything else. */

import { Answers, type Handlers } from "./answers.js";
import type { Agent, Budget, Decision, EnqueueOptions, Me, Reply, Snapshot, StartOptions, TurnRecord } from "./api_types.js";
import { messageBody, uuid } from "./message_body.js";
import type { ConnectionListener, ConnectionState } from "./connection.js";
import { Documents } from "./documents.js";
import { TurnwireError } from "./errors.js";
import type { Followed } from "./events.js";
import { checkStream, follow, abortable } from "./follow.js";
import { Http, type HttpOptions } from "./http.js";
import { SessionCursor } from "./cursors.js";
import { sessionPath, Sessions } from "./sessions.js";
import { answersOver, type FollowOptions, TurnHandle } from "./turn.js";
import { ConnectionGuard } from "./retry.js";

export type ClientOptions = HttpOptions;

export class TurnwireClient {
  readonly sessions: Sessions;
  readonly documents: Documents;
  /** For internal use. */
  readonly http: Http;

  constructor(options: ClientOptions = {}) {
    this.http = new Http(options);
    this.sessions = new Sessions(this.http);
    this.documents = new Documents(this.http);
  }

  /**
   * Starts a turn; resolves when the server has accepted it. Retries use one Idempotency-Key, so they never start a
   * second turn. The signal ends the retries, not the turn.
   */
  async start({ signal, idempotencyKey = uuid(), ...options }: StartOptions): Promise<TurnHandle> {
    const body = messageBody(options);
    const headers = { Accept: "text/event-stream", "Idempotency-Key": idempotencyKey };
    return this.http.withRetries({ signal, attempts: this.http.retry.attempts }, async () => {
      const guard = new ConnectionGuard(this.http.retry.heartbeat, signal);
      try {
        const request = { method: "POST", path: "/chat/stream", body, headers };
        const response = checkStream(await guard.receive(this.http.open(request, guard)));
        const turnId = response.headers.get("X-Turn-Id");
        const sessionId = response.headers.get("X-Session-Id");
        if (!turnId || !sessionId) throw new TurnwireError(0, "not_turnwire", "the response does not name its turn");
        guard.linkSignal(undefined);
        return new TurnHandle(this.http, turnId, sessionId, { response, guard }, options);
      } catch (error) {
        guard.cut();
        throw error;
      }
    });
  }

  /**
   * Starts a turn in an existing session without reading it, for callers that follow the session. It is retried as a
   * start is.
   */
  enqueue({ sessionId, idempotencyKey = uuid(), signal, ...options }: EnqueueOptions): Promise<TurnRecord> {
    const headers = { "Idempotency-Key": idempotencyKey };
    const path = `${sessionPath(sessionId)}/turns`;
    return this.http.json({ method: "POST", path, body: messageBody(options), headers, signal });
  }

  /** Returns a handle for an existing turn; its handlers are called for what is still open. */
  turn(turnId: string, handlers: Handlers = {}): TurnHandle {
    return new TurnHandle(this.http, turnId, undefined, undefined, handlers);
  }

  /** Returns the state of a turn. */
  snapshot(turnId: string): Promise<Snapshot> {
    return this.turn(turnId).snapshot();
  }

  /** Resolves when the turn has stopped. */
  cancel(turnId: string): Promise<Snapshot> {
    return this.turn(turnId).cancel();
  }

  /** Approves or denies a tool call that a turn waits for. */
  decide(turnId: string, callId: string, decision: Decision): Promise<Snapshot> {
    return this.turn(turnId).decide(callId, decision);
  }

  /** Answers a question that a turn waits for. */
  reply(turnId: string, questionId: string, reply: Reply): Promise<Snapshot> {
    return this.turn(turnId).reply(questionId, reply);
  }

  /** Sends the result of one of your own tools. */
  sendToolResult(turnId: string, callId: string, output: unknown, isError = false): Promise<Snapshot> {
    return this.turn(turnId).sendToolResult(callId, output, isError);
  }

  /**
   * Follows all turns of a session in one stream, in order, also those that other clients start. The stream ends when
   * you leave it. `after` is the last `id` that you have. Handlers are called for what is still open.
   */
  followSession(
    sessionId: string,
    options: FollowOptions & Handlers & { after?: string } = {},
  ): AsyncGenerator<Followed, void, undefined> {
    const path = `${sessionPath(sessionId)}/events`;
    return abortable(options.signal, (signal) => {
      const cursor = new SessionCursor(options.after);
      const items = follow(this.http, { path, cursor, endsWithDone: false, signal, onControl: options.onControl });
      return answered(items, new Answers(answersOver(this.http), () => options));
    });
  }

  /** Returns the agents. */
  async agents(): Promise<Agent[]> {
    return (await this.request<{ agents: Agent[] }>("GET", "/v1/agents")).agents;
  }

  /** Returns the caller, also without a key. */
  me(): Promise<Me> {
    return this.request("GET", "/v1/me");
  }

  /** Returns the tokens used today. */
  budget(): Promise<Budget> {
    return this.request("GET", "/v1/budget");
  }

  /** Calls any other JSON route. Only a GET is retried. */
  request<Answer>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    const attempts = method === "GET" ? {} : { attempts: 1 };
    return this.http.json({ method, path, body, signal, ...attempts });
  }

  /** The last known connection state. */
  get connection(): ConnectionState {
    return this.http.watch.state;
  }

  /** Adds a listener; returns a function that removes it. */
  onConnection(listener: ConnectionListener): () => void {
    return this.http.watch.listen(listener);
  }
}

async function* answered(items: AsyncGenerator<Followed, void, undefined>, answers: Answers): AsyncGenerator<Followed, void, undefined> {
  for await (const item of items) {
    answers.take(item);
    yield item;
  }
}
