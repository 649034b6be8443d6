/** Following a stream to its end, across lost connections. */

import { TurnwireError } from "./errors.js";
import type { Followed, TurnEvent } from "./events.js";
import { type Frame, FrameParser } from "./frames.js";
import { chunksOf, type Http } from "./http.js";
import type { Control, Cursor } from "./cursors.js";
import { callSafely, ConnectionGuard, sleep } from "./retry.js";

/** A response whose stream is open, and the guard of its connection. */
export interface OpenStream {
  response: Response;
  guard: ConnectionGuard;
}

export interface StreamOptions {
  path: string;
  cursor: Cursor;
  /** A stream that is open already. */
  opened?: OpenStream | undefined;
  /** True if the stream ends with `done`; false if the next turn follows. */
  endsWithDone: boolean;
  signal?: AbortSignal | undefined;
  onControl?: ((control: Control) => void) | undefined;
}

/** Yields the items of a stream. A lost connection is opened again; only final errors are thrown. */
export async function* follow(http: Http, options: StreamOptions): AsyncGenerator<Followed, void, undefined> {
  const { cursor, signal } = options;
  const owner = {};
  let { opened } = options;
  opened?.guard.linkSignal(signal);
  let attempt = 0;
  let openedAt = Infinity;
  let pause: number | undefined;
  try {
    for (;;) {
      const guard = opened?.guard ?? new ConnectionGuard(http.retry.heartbeat, signal);
      try {
        const response = opened?.response ?? (await openStream(http, options.path, cursor.lastId, guard));
        opened = undefined;
        if (response === undefined) return; // The turn has ended, and the reader has all of it.
        http.watch.forget(owner);
        http.watch.reached();
        pause = undefined;
        openedAt = Date.now();
        for await (const frame of framesOf(response, guard)) {
          if (frame.retry !== undefined) pause = frame.retry;
          const item = itemOf(frame, options);
          if (item === undefined) continue;
          attempt = 0;
          yield item;
          if (options.endsWithDone && item.event?.type === "done") return;
        }
        if (pause === undefined) throw new TurnwireError(0, "broken_stream", "the stream ended before the turn did");
        await sleep(pause, signal);
      } catch (error) {
        // A quiet stream that was open for long has not failed; one that ends at once has.
        if (Date.now() - openedAt > http.retry.heartbeat) attempt = 0;
        openedAt = Infinity;
        await http.waitBeforeRetry(owner, error, ++attempt, http.retry.streamAttempts, signal, pause);
      } finally {
        guard.cut();
      }
    }
  } finally {
    opened?.guard.cut();
    http.watch.forget(owner);
  }
}

/** Returns undefined if the log has no more events. Throws TurnwireError. */
async function openStream(
  http: Http,
  path: string,
  lastId: string | undefined,
  guard: ConnectionGuard,
): Promise<Response | undefined> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (lastId !== undefined) headers["Last-Event-ID"] = lastId;
  const response = await guard.receive(http.open({ path, headers }, guard));
  return response.status === 204 ? undefined : checkStream(response);
}

/** Throws a retryable error for a response that is no stream: it comes from a proxy, and may go away. */
export function checkStream(response: Response): Response {
  if (response.body && response.headers.get("Content-Type")?.startsWith("text/event-stream")) return response;
  throw new TurnwireError(0, "not_turnwire", "the response is not an event stream");
}

async function* framesOf(response: Response, guard: ConnectionGuard): AsyncGenerator<Frame, void, undefined> {
  const parser = new FrameParser();
  for await (const bytes of chunksOf(response, guard)) yield* parser.feed(bytes);
}

function itemOf(frame: Frame, { cursor, onControl }: StreamOptions): Followed | undefined {
  if (frame.data === undefined) return undefined;
  const event = JSON.parse(frame.data) as TurnEvent | Control;
  if (frame.id === undefined) {
    const control = event as Control;
    if (control.type !== "reset" && control.type !== "gap" && control.type !== "reconnect") return undefined;
    if (onControl) callSafely(() => onControl(control));
    return cursor.control(control);
  }
  const result = cursor.take(frame.id, event as TurnEvent);
  if (result === "missing") throw new TurnwireError(0, "broken_stream", "an event is missing in the stream");
  return result === "old" ? undefined : result;
}

/**
 * Returns a generator whose `return` aborts the connection first. A plain generator could only return after the next
 * item.
 */
export function abortable(
  signal: AbortSignal | undefined,
  run: (signal: AbortSignal) => AsyncGenerator<Followed, void, undefined>,
): AsyncGenerator<Followed, void, undefined> {
  const aborter = new AbortController();
  const forwardAbort = (): void => aborter.abort(signal?.reason);
  if (signal?.aborted) forwardAbort();
  else signal?.addEventListener("abort", forwardAbort);
  const inner = run(aborter.signal);
  let hasReturned = false;
  const settle = async (step: Promise<IteratorResult<Followed, void>>): Promise<IteratorResult<Followed, void>> => {
    try {
      const result = await step;
      if (result.done) signal?.removeEventListener("abort", forwardAbort);
      return result;
    } catch (error) {
      signal?.removeEventListener("abort", forwardAbort);
      if (hasReturned) return { done: true, value: undefined };
      throw error;
    }
  };
  const abort = (): void => {
    hasReturned = true;
    aborter.abort();
  };
  return {
    next: () => settle(inner.next()),
    return: () => {
      abort();
      return settle(inner.return());
    },
    throw: async (error: unknown) => {
      abort();
      await settle(inner.return());
      throw error;
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  } as AsyncGenerator<Followed, void, undefined>;
}
