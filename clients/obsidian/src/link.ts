/**
 * The way to the server: by `fetch`, which streams; or, where the server does not allow Obsidian's origin, by
 * `requestUrl`, which only ever gives whole answers, so that the events are asked for again and again.
 */

import { type Followed, type TurnEvent, TurnwireClient, TurnwireError } from "@turnwire/client";
import { requestUrl } from "obsidian";

/** Shorter than any proxy's patience. */
const POLL_SECONDS = 20;

export type Mode = "streaming" | "polling";

export interface LinkOptions {
  url: string;
  key: () => string | undefined;
}

export class Link {
  readonly client: TurnwireClient;
  readonly mode: Mode;

  constructor(options: LinkOptions, mode: Mode) {
    this.mode = mode;
    this.client = new TurnwireClient({ ...options, fetch: mode === "polling" ? requestFetch : fetchOfTheWindow });
  }

  /** Starts a turn in a session, which is made if it is new; resolves with the turn's id. It is tried again safely. */
  async start(sessionId: string, message: string, agent: string): Promise<string> {
    await this.client.sessions.create({ id: sessionId });
    const started = await this.client.enqueue({ sessionId, message, ...(agent ? { agent } : {}) });
    return started.turn_id;
  }

  /** One turn's events after a position, until its last one; for who cannot stream. */
  async *poll(turnId: string, after: number, signal: AbortSignal): AsyncGenerator<Followed, void, undefined> {
    let from = after;
    while (!signal.aborted) {
      const path = `/v1/turns/${encodeURIComponent(turnId)}/events?after=${from}&wait=${POLL_SECONDS}`;
      let told: Polled | undefined;
      try {
        told = await this.client.request<Polled | undefined>("GET", path, undefined, signal);
      } catch (error) {
        if (!(error instanceof TurnwireError) || error.code !== "reset") throw error;
        from = 0;
        yield { control: "reset", turnId };
        continue;
      }
      if (told === undefined) return;
      for (const { position, epoch, event } of told.events) {
        yield { turnId, position, epoch, id: `${position}.${epoch}`, event };
      }
      from = told.after;
      if (told.done) return;
    }
  }
}

interface Polled {
  events: { position: number; epoch: number; event: TurnEvent }[];
  after: number;
  done: boolean;
}

/** Finds the way that works. Throws TurnwireError if there is none, or the key is wrong. */
export async function connect(options: LinkOptions): Promise<{ link: Link; agents: string[] }> {
  const streaming = new Link(options, "streaming");
  try {
    return { link: streaming, agents: await agentsOf(streaming, options) };
  } catch (error) {
    if (!(error instanceof TurnwireError) || error.status !== 0) throw error;
    const polling = new Link(options, "polling");
    try {
      return { link: polling, agents: await agentsOf(polling, options) };
    } catch (second) {
      throw second instanceof TurnwireError && second.status !== 0 ? second : error;
    }
  }
}

async function agentsOf(link: Link, options: LinkOptions): Promise<string[]> {
  // Of its own, because this must be told at once what does not work.
  const client = new TurnwireClient({
    ...options,
    fetch: link.mode === "polling" ? requestFetch : fetchOfTheWindow,
    retry: { attempts: 1 },
  });
  return (await client.agents()).map((agent) => agent.name);
}

export function newId(): string {
  return `obsidian-${crypto.randomUUID()}`;
}

// Not requestUrl, which gives an answer only when all of it is there.
const fetchOfTheWindow: typeof fetch = (input, init) => fetch(input, init);

/** `fetch` by Obsidian's own means, which no server has to allow. The answer comes whole, and cannot be broken off. */
const requestFetch: typeof fetch = async (input, init) => {
  const answer = await requestUrl({
    url: input as string,
    method: init?.method ?? "GET",
    headers: init?.headers as Record<string, string>,
    ...(init?.body == null ? {} : { body: init.body as string }),
    throw: false,
  });
  init?.signal?.throwIfAborted();
  const isEmpty = answer.status === 204 || answer.status === 304;
  return new Response(isEmpty ? null : answer.text, { status: answer.status, headers: answer.headers });
};
