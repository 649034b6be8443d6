/** HTTP requests: address, key, errors and retries. */

import { ConnectionWatch } from "./connection.js";
import { TurnwireError } from "./errors.js";
import { backoff, ConnectionGuard, RETRY, type RetryOptions, sleep } from "./retry.js";

/** A longer Retry-After is thrown to the caller, unless the server is away, which may end sooner. */
const MAX_RETRY_AFTER = 60_000;

export interface HttpOptions {
  /** The server's address; "" is the origin of the page. */
  url?: string;
  /** An API key, or a function that returns it. */
  key?: string | (() => string | undefined);
  fetch?: typeof fetch;
  credentials?: RequestCredentials;
  retry?: RetryOptions;
}

export interface RequestOptions {
  method?: string;
  path: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** The number of attempts. */
  attempts?: number;
  /** True if the response has no timeout. */
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

  /** Calls a JSON route, with retries: every request that is sent this way is safe to repeat. */
  async json<Answer>(request: RequestOptions): Promise<Answer> {
    return this.withRetries({ attempts: this.retry.attempts, ...request }, async () => {
      const guard = new ConnectionGuard(request.isLong ? Infinity : this.retry.heartbeat, request.signal);
      try {
        const response = await guard.receive(this.open(request, guard));
        return (response.status === 204 ? undefined : JSON.parse(await textOf(response, guard))) as Answer;
      } catch (error) {
        throw failureOf(error);
      } finally {
        guard.cut();
      }
    });
  }

  /** Deletes something. A 404 after a lost response means that the first attempt succeeded. */
  async remove(path: string): Promise<void> {
    let tries = 0;
    await this.withRetries({ attempts: this.retry.attempts }, async () => {
      try {
        await this.json({ method: "DELETE", path, attempts: 1 });
      } catch (error) {
        if (tries++ === 0 || failureOf(error).status !== 404) throw error;
      }
    });
  }

  /** Sends a request once. Throws TurnwireError for every status that is not 2xx. */
  async open(request: RequestOptions, guard: ConnectionGuard): Promise<Response> {
    const { credentials } = this.#options;
    const send = this.#options.fetch ?? globalThis.fetch;
    const headers = this.headers(request.headers);
    const init: RequestInit = { method: request.method ?? "GET", headers, signal: guard.signal, cache: "no-store" };
    if (credentials) init.credentials = credentials;
    if (request.body instanceof FormData) init.body = request.body;
    else if (request.body !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = JSON.stringify(request.body);
    }
    const response = await send(this.url + request.path, init);
    if (!response.ok) throw await refusal(response);
    return response;
  }

  /** Repeats an action until it succeeds, fails for good, or has no attempts left. */
  async withRetries<T>(
    request: { signal?: AbortSignal | undefined; attempts?: number },
    once: () => Promise<T>,
  ): Promise<T> {
    const owner = {};
    try {
      for (let attempt = 1; ; attempt++) {
        try {
          const done = await once();
          this.watch.reached();
          return done;
        } catch (error) {
          await this.waitBeforeRetry(owner, error, attempt, request.attempts ?? 1, request.signal);
        }
      }
    } finally {
      this.watch.forget(owner);
    }
  }

  /** Waits until the next attempt. Throws final errors. */
  async waitBeforeRetry(
    owner: object,
    error: unknown,
    attempt: number,
    attempts: number,
    signal: AbortSignal | undefined,
    first = this.retry.first,
  ): Promise<void> {
    signal?.throwIfAborted();
    const failure = failureOf(error);
    const retryAfter = Math.min(failure.retryAfter ?? 0, MAX_RETRY_AFTER);
    const isAway = failure.status === 0 || failure.status >= 500;
    if (!isAway) this.watch.reached();
    const isForLong = !isAway && (failure.retryAfter ?? 0) > MAX_RETRY_AFTER;
    if (!failure.retryable || isForLong || attempt >= attempts) {
      if (isAway) this.watch.reportFailure(failure);
      throw failure;
    }
    const pause = Math.max(retryAfter, backoff(attempt, first, this.retry.most));
    if (isAway) this.watch.report(owner, "offline", { attempt, retryIn: pause, error: failure });
    await sleep(pause, signal);
    if (isAway) this.watch.report(owner, "connecting", { attempt, error: failure });
  }
}

/** Returns any error as a TurnwireError. A request without a response is retryable. */
export function failureOf(error: unknown): TurnwireError {
  if (error instanceof TurnwireError) return error;
  if (error instanceof SyntaxError) {
    return new TurnwireError(0, "not_turnwire", "the response is not JSON", { cause: error });
  }
  const message = error instanceof Error ? error.message : String(error);
  return new TurnwireError(0, "network", `the server cannot be reached: ${message}`, { cause: error });
}

/** Reads the body in pieces, so that a slow body does not time out and a silent one does. */
async function textOf(response: Response, guard: ConnectionGuard): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of chunksOf(response, guard)) text += decoder.decode(bytes, { stream: true });
  return text + decoder.decode();
}

export async function* chunksOf(
  response: Response,
  guard: ConnectionGuard,
): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = response.body?.getReader();
  for (;;) {
    const { done, value } = (reader && (await guard.receive(reader.read()))) ?? { done: true };
    if (done) return;
    yield value!;
  }
}

async function refusal(response: Response): Promise<TurnwireError> {
  const body = await response.text().catch(() => "");
  return refusalOf(response.status, body, retryAfterOf(response));
}

/** Returns the error of a response. A body that is not Turnwire's, such as a proxy's page, gives its status only. */
export function refusalOf(status: number, body: string, retryAfter?: number): TurnwireError {
  let error: { code?: unknown; message?: unknown } | undefined;
  try {
    error = (JSON.parse(body) as { error?: typeof error }).error;
  } catch {
    // Not Turnwire's.
  }
  const code = typeof error?.code === "string" ? error.code : "http_error";
  const message = typeof error?.message === "string" ? error.message : `the server answered ${status}`;
  return new TurnwireError(status, code, message, { retryAfter });
}

function retryAfterOf(response: Response): number | undefined {
  const header = response.headers.get("Retry-After");
  if (!header) return undefined;
  const seconds = Number(header);
  const ms = Number.isNaN(seconds) ? Date.parse(header) - Date.now() : seconds * 1000;
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}

/** Returns a query string without undefined fields. */
export function queryOf(fields: object): string {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return entries.length ? `?${new URLSearchParams(entries.map(([name, value]) => [name, String(value)]))}` : "";
}
