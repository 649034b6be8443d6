/** One turn as React state. */

import { useMemo, useSyncExternalStore } from "react";
import {
  applyEvent,
  type Decision,
  EMPTY_VIEW,
  type Followed,
  type Reply,
  type TurnView,
  type TurnwireClient,
} from "@turnwire/client";
import { Follower } from "./follower.js";
import { useTurnwireClient } from "./provider.js";

export interface LiveTurn {
  /** What a page shows of the turn; empty until the first event. */
  view: TurnView;
  /** The error that ended the stream for good, such as an unknown turn. A lost connection is none. */
  error: Error | undefined;
  /** Stops the turn; resolves when it has stopped. */
  stop: () => Promise<void>;
  /** Approves or denies a tool call that the turn waits for. */
  decide: (callId: string, decision: Decision) => Promise<void>;
  /** Answers a question that the turn waits for. */
  reply: (questionId: string, reply: Reply) => Promise<void>;
  /** Sends the result of one of your own tools. */
  sendToolResult: (callId: string, output: unknown, isError?: boolean) => Promise<void>;
  /** Rates the turn, with a note; `null` withdraws the rating. */
  rate: (value: "up" | "down" | null, note?: string) => Promise<void>;
}

/** Follows a turn while the component is mounted: from its start, live, and across lost connections. */
export function useTurn(turnId: string | null | undefined): LiveTurn {
  const client = useTurnwireClient();
  const follower = useMemo(() => new TurnFollower(client, turnId), [client, turnId]);
  return useSyncExternalStore(follower.subscribe, follower.get, follower.get);
}

class TurnFollower extends Follower<LiveTurn> {
  readonly #client: TurnwireClient;
  readonly #turnId: string | null | undefined;

  constructor(client: TurnwireClient, turnId: string | null | undefined) {
    const turn = () => {
      if (!turnId) throw new Error("There is no turn yet.");
      return client.turn(turnId);
    };
    super({
      view: EMPTY_VIEW,
      error: undefined,
      stop: async () => void (await turn().cancel()),
      decide: async (callId, decision) => void (await turn().decide(callId, decision)),
      reply: async (questionId, reply) => void (await turn().reply(questionId, reply)),
      sendToolResult: async (callId, output, isError) => void (await turn().sendToolResult(callId, output, isError)),
      rate: async (value, note) => void (await turn().rate(value, note)),
    });
    this.#client = client;
    this.#turnId = turnId;
  }

  protected async *open(after: string | undefined, signal: AbortSignal): AsyncGenerator<Followed> {
    if (this.#turnId) yield* this.#client.turn(this.#turnId).events({ signal, ...(after ? { after } : {}) });
  }

  protected reduce(state: LiveTurn, item: Followed): LiveTurn {
    return { ...state, view: applyEvent(state.view, item), error: undefined };
  }

  protected failed(state: LiveTurn, error: Error): LiveTurn {
    return { ...state, error };
  }
}
