/** A session with all its turns as React state. */

import { useMemo, useRef, useSyncExternalStore } from "react";
import {
  applyEvent,
  type Decision,
  EMPTY_VIEW,
  type Followed,
  type Handlers,
  type Reply,
  type StartOptions,
  type TurnView,
  type TurnwireClient,
  TurnwireError,
} from "@turnwire/client";
import { Follower } from "./follower.js";
import { useTurnwireClient } from "./provider.js";

export interface SessionOptions extends Handlers {
  /** The agent of messages that name none. */
  agent?: string;
}

export interface LiveSession {
  /** The turns in the order of acceptance, also those that other clients start. */
  turns: readonly TurnView[];
  /** True while a turn is queued, runs or waits for a person. */
  isBusy: boolean;
  /** The error that ended the stream for good. A lost connection is none. */
  error: Error | undefined;
  /** Starts a turn; resolves with its id when the server has accepted it. A retry never starts a second one. */
  send: (message: string, options?: Omit<StartOptions, "message" | "sessionId" | "signal">) => Promise<string>;
  /** Stops a turn, by default the one that runs; resolves when it has stopped. */
  stop: (turnId?: string) => Promise<void>;
  /** Approves or denies a tool call that a turn waits for. */
  decide: (turnId: string, callId: string, decision: Decision) => Promise<void>;
  /** Answers a question that a turn waits for. */
  reply: (turnId: string, questionId: string, reply: Reply) => Promise<void>;
  /** Sends the result of a tool of yours that has no `run`. */
  sendToolResult: (turnId: string, callId: string, output: unknown, isError?: boolean) => Promise<void>;
  /** Rates a turn, with a note; `null` withdraws the rating. */
  rate: (turnId: string, value: "up" | "down" | null, note?: string) => Promise<void>;
}

/**
 * Follows a session while the component is mounted. The id is the server's, or your own, such as a room or a user: then
 * the session is created if it is new. The `tools` are declared with every message; they and `onQuestion` are called while
 * the component is mounted, and may change with each render.
 */
export function useSession(sessionId: string, { agent, ...handlers }: SessionOptions = {}): LiveSession {
  const client = useTurnwireClient();
  const latest = useRef<Handlers>(handlers);
  latest.current = handlers;
  const follower = useMemo(() => new SessionFollower(client, sessionId, agent, latest), [client, sessionId, agent]);
  return useSyncExternalStore(follower.subscribe, follower.get, follower.get);
}

class SessionFollower extends Follower<LiveSession> {
  readonly #client: TurnwireClient;
  readonly #sessionId: string;
  #found: Promise<unknown> | undefined;

  readonly #handlers: { current: Handlers };

  constructor(client: TurnwireClient, sessionId: string, agent: string | undefined, handlers: { current: Handlers }) {
    super({
      turns: [],
      isBusy: false,
      error: undefined,
      send: async (message, options) => {
        await this.#find();
        const { tools } = handlers.current;
        const chosen = { ...(agent ? { agent } : {}), ...(tools ? { tools } : {}) };
        return (await client.enqueue({ ...chosen, ...options, message, sessionId })).turn_id;
      },
      stop: async (turnId = this.get().turns.find(({ phase }) => phase !== "ended")?.turnId) => {
        if (turnId) await client.cancel(turnId);
      },
      decide: async (turnId, callId, decision) => void (await client.decide(turnId, callId, decision)),
      reply: async (turnId, questionId, reply) => void (await client.reply(turnId, questionId, reply)),
      sendToolResult: async (turnId, callId, output, isError) =>
        void (await client.sendToolResult(turnId, callId, output, isError)),
      rate: async (turnId, value, note) => void (await client.turn(turnId).rate(value, note)),
    });
    this.#handlers = handlers;
    this.#client = client;
    this.#sessionId = sessionId;
  }

  protected async *open(after: string | undefined, signal: AbortSignal): AsyncGenerator<Followed> {
    await this.#find();
    const handlers = this.#handlers;
    yield* this.#client.followSession(this.#sessionId, {
      signal,
      ...(after ? { after } : {}),
      // Those of the last render.
      get tools() {
        return handlers.current.tools ?? [];
      },
      onQuestion: (question) => handlers.current.onQuestion?.(question),
    });
  }

  protected reduce(state: LiveSession, item: Followed): LiveSession {
    if (item.control === "reset") return withTurns(state, []);
    if (item.turnId === undefined) return state;
    const index = state.turns.findIndex(({ turnId }) => turnId === item.turnId);
    const turns = [...state.turns];
    if (index < 0) turns.push(applyEvent(EMPTY_VIEW, item));
    else turns[index] = applyEvent(turns[index]!, item);
    return withTurns(state, turns);
  }

  protected failed(state: LiveSession, error: Error): LiveSession {
    this.#found = undefined;
    return { ...state, error };
  }

  /** Resolves when the session exists. Your own id is created only once, however many clients try. */
  #find(): Promise<unknown> {
    const { sessions } = this.#client;
    const id = this.#sessionId;
    this.#found ??= sessions.get(id, { limit: 1 }).catch((error: unknown) => {
      // A session of the server that is gone must not come back under its old name.
      if (error instanceof TurnwireError && error.status === 404 && !SERVER_ID.test(id)) return sessions.create({ id });
      throw error;
    });
    this.#found.catch(() => (this.#found = undefined));
    return this.#found;
  }
}

const SERVER_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;

function withTurns(state: LiveSession, turns: readonly TurnView[]): LiveSession {
  return { ...state, turns, isBusy: turns.some(({ phase }) => phase !== "ended"), error: undefined };
}
