/** Requests: the address, the key, what counts as an error, and what is tried again. */

import { ConnectionWatch } from "./connection.js";
import { TurnwireError } from "./errors.js";
import { Lifeline, pauseBefore, rest, RETRY, type RetryOptions } from "./waiting.js";

/** Who may come back in an hour is told so; a server that is away may be back before it said. */
const LONGEST_WAIT = 60_000;

export interface HttpOptions {
  /** Where the server is; "" is where the page comes from. */
  url?: string;
  /** An API key, or how to get it each time it is needed. */
  key?: string | (() => string | undefined);
  fetch?: typeof fetch;
  credentials?: RequestCredentials;
  retry?: RetryOptions;
}

export interface Asked {
  method?: string;
  path: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** How often it is tried. */
  attempts?: number;
  /** Whether the answer may take as long as it likes. */
  isLong?: boolean;
}

export class Http {
  readonly url: string;
  readonly retry: Required<RetryOptions>;
  readonly watch = new ConnectionWatch();
  readonly #options: HttpOptions;

  constructor(options: HttpOptions) {
    this.#options = options;
    this.url = (options.url ?? "").replace(/\/+$/, "");
    this.retry = { ...RETRY, ...options.retry };
  }

  get key(): string | undefined {
    const { key } = this.#options;
    return typeof key === "function" ? key() : key;
  }

  get credentials(): RequestCredentials | undefined {
    return this.#options.credentials;
  }

  headers(more: Record<string, string> = {}): Record<string, string> {
    const key = this.key;
    return key ? { ...more, Authorization: `Bearer ${key}` } : more;
  }

  /** The answer of a JSON route, tried as often as it is safe; all that are called this way are. */
  async json<Answer>(asked: Asked): Promise<Answer> {
    return this.persist({ attempts: this.retry.attempts, ...asked }, async () => {
      const line = new Lifeline(asked.isLong ? Infinity : this.retry.heartbeat, asked.signal);
      try {
        const response = await line.heard(this.open(asked, line));
        return (response.status === 204 ? undefined : JSON.parse(await textOf(response, line))) as Answer;
      } catch (error) {
        throw failureOf(error);
      } finally {
        line.cut();
      }
    });
  }

  /** Deletes something. If it is gone after a try whose answer was lost, that try has done it. */
  async erase(path: string): Promise<void> {
    let tries = 0;
    await this.persist({ attempts: this.retry.attempts }, async () => {
      try {
        await this.json({ method: "DELETE", path, attempts: 1 });
      } catch (error) {
        if (tries++ === 0 || failureOf(error).status !== 404) throw error;
      }
    });
  }

  /** One try. Throws TurnwireError for every answer that is not a good one. */
  async open(asked: Asked, line: Lifeline): Promise<Response> {
    const { credentials } = this.#options;
    const ask = this.#options.fetch ?? globalThis.fetch;
    const headers = this.headers(asked.headers);
    const init: RequestInit = { method: asked.method ?? "GET", headers, signal: line.signal, cache: "no-store" };
    if (credentials) init.credentials = credentials;
    if (asked.body instanceof FormData) init.body = asked.body;
    else if (asked.body !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = JSON.stringify(asked.body);
    }
    const response = await ask(this.url + asked.path, init);
    if (!response.ok) throw await refusal(response);
    return response;
  }

  /** Does something until it is done, the server says no for good, or it was tried often enough. */
  async persist<T>(asked: { signal?: AbortSignal | undefined; attempts?: number }, once: () => Promise<T>): Promise<T> {
    const who = {};
    try {
      for (let attempt = 1; ; attempt++) {
        try {
          const done = await once();
          this.watch.reached();
          return done;
        } catch (error) {
          await this.bear(who, error, attempt, asked.attempts ?? 1, asked.signal);
        }
      }
    } finally {
      this.watch.forget(who);
    }
  }

  /** Waits after a failure until it is time to try again. Throws what is final. */
  async bear(
    who: object,
    error: unknown,
    attempt: number,
    attempts: number,
    signal: AbortSignal | undefined,
    first = this.retry.first,
  ): Promise<void> {
    signal?.throwIfAborted();
    const failure = failureOf(error);
    const asked = Math.min(failure.retryAfter ?? 0, LONGEST_WAIT);
    const isAway = failure.status === 0 || failure.status >= 500;
    const isForLong = !isAway && (failure.retryAfter ?? 0) > LONGEST_WAIT;
    if (!failure.retryable || isForLong || attempt >= attempts) {
      if (isAway) this.watch.missed(failure);
      throw failure;
    }
    const pause = Math.max(asked, pauseBefore(attempt, first, this.retry.most));
    if (isAway) this.watch.tell(who, "offline", { attempt, retryIn: pause, error: failure });
    await rest(pause, signal);
    if (isAway) this.watch.tell(who, "connecting", { attempt, error: failure });
  }
}

/** What went wrong, as an error of ours. What nobody answered may go well the next time. */
export function failureOf(error: unknown): TurnwireError {
  if (error instanceof TurnwireError) return error;
  if (error instanceof SyntaxError) {
    return new TurnwireError(0, "not_turnwire", "what answered there does not speak JSON", { cause: error });
  }
  const told = error instanceof Error ? error.message : String(error);
  return new TurnwireError(0, "network", `the server cannot be reached: ${told}`, { cause: error });
}

/** Piece by piece: much may take its time, but not in silence. */
async function textOf(response: Response, line: Lifeline): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of chunksOf(response, line)) text += decoder.decode(bytes, { stream: true });
  return text + decoder.decode();
}

export async function* chunksOf(response: Response, line: Lifeline): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = response.body?.getReader();
  for (;;) {
    const { done, value } = (reader && (await line.heard(reader.read()))) ?? { done: true };
    if (done) return;
    yield value!;
  }
}

async function refusal(response: Response): Promise<TurnwireError> {
  const body = await response.text().catch(() => "");
  return refusalOf(response.status, body, waitAsked(response));
}

/** An answer that is a no. A proxy's page, or an answer that broke off, says enough with its status. */
export function refusalOf(status: number, body: string, retryAfter?: number): TurnwireError {
  let told: { code?: unknown; message?: unknown } | undefined;
  try {
    told = (JSON.parse(body) as { error?: typeof told }).error;
  } catch {
    // Not ours.
  }
  const code = typeof told?.code === "string" ? told.code : "http_error";
  const message = typeof told?.message === "string" ? told.message : `the server answered ${status}`;
  return new TurnwireError(status, code, message, { retryAfter });
}

function waitAsked(response: Response): number | undefined {
  const told = response.headers.get("Retry-After");
  if (!told) return undefined;
  const seconds = Number(told);
  const ms = Number.isNaN(seconds) ? Date.parse(told) - Date.now() : seconds * 1000;
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}

/** What is undefined is left out. */
export function queryOf(fields: object): string {
  const told = Object.entries(fields).filter(([, value]) => value !== undefined);
  return told.length ? `?${new URLSearchParams(told.map(([name, value]) => [name, String(value)]))}` : "";
}
