/**
 * The connection to the server: by `fetch`, which streams; or, if the server does not allow Obsidian's origin, by
 * `requestUrl`, which returns whole responses only, so that events are polled.
 */

import { type Followed, type TurnEvent, TurnwireClient, TurnwireError } from "@turnwire/client";
import { requestUrl } from "obsidian";

/** Shorter than the timeout of any proxy. */
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
    this.client = new TurnwireClient({ ...options, fetch: mode === "polling" ? requestFetch : windowFetch });
  }

  /** Starts a turn in a session, which is created if it is new; returns the turn id. Retries are safe. */
  async start(sessionId: string, message: string, agent: string): Promise<string> {
    await this.client.sessions.create({ id: sessionId });
    const record = await this.client.enqueue({ sessionId, message, ...(agent ? { agent } : {}) });
    return record.turn_id;
  }

  /** Yields the events of a turn after a position by long polling. */
  async *poll(turnId: string, after: number, signal: AbortSignal): AsyncGenerator<Followed, void, undefined> {
    let from = after;
    while (!signal.aborted) {
      const path = `/v1/turns/${encodeURIComponent(turnId)}/events?after=${from}&wait=${POLL_SECONDS}`;
      let page: PollPage | undefined;
      try {
        page = await this.client.request<PollPage | undefined>("GET", path, undefined, signal);
      } catch (error) {
        if (!(error instanceof TurnwireError) || error.code !== "reset") throw error;
        from = 0;
        yield { control: "reset", turnId };
        continue;
      }
      if (page === undefined) return;
      for (const { position, epoch, event } of page.events) {
        yield { turnId, position, epoch, id: `${position}.${epoch}`, event };
      }
      from = page.after;
      if (page.done) return;
    }
  }
}

interface PollPage {
  events: { position: number; epoch: number; event: TurnEvent }[];
  after: number;
  done: boolean;
}

/** Connects by streaming or by polling. Throws TurnwireError if both fail, or the key is wrong. */
export async function connect(options: LinkOptions): Promise<{ link: Link; agents: string[] }> {
  const streaming = new Link(options, "streaming");
  try {
    return { link: streaming, agents: await agentsOf(streaming, options) };
  } catch (error) {
    if (!(error instanceof TurnwireError) || error.status !== 0) throw error;
    const polling = new Link(options, "polling");
    try {
      return { link: polling, agents: await agentsOf(polling, options) };
    } catch (pollingError) {
      throw pollingError instanceof TurnwireError && pollingError.status !== 0 ? pollingError : error;
    }
  }
}

async function agentsOf(link: Link, options: LinkOptions): Promise<string[]> {
  // A separate client without retries, to report failures at once.
  const client = new TurnwireClient({
    ...options,
    fetch: link.mode === "polling" ? requestFetch : windowFetch,
    retry: { attempts: 1 },
  });
  return (await client.agents()).map((agent) => agent.name);
}

export function newId(): string {
  return `obsidian-${crypto.randomUUID()}`;
}

// `fetch`, because Obsidian's `requestUrl` cannot stream: it returns whole responses only. It calls the user's own server, which
// allows Obsidian's origins by CORS; where it does not, `requestFetch` below is used instead.
const windowFetch: typeof fetch = (input, init) => fetch(input, init);

/** `fetch` on top of `requestUrl`, which needs no CORS. The response comes whole and cannot be aborted. */
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
