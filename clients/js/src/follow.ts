/** A stream that is read to its end through every drop. */

import { TurnwireError } from "./errors.js";
import type { Followed, TurnEvent } from "./events.js";
import { type Frame, FrameParser } from "./frames.js";
import { chunksOf, type Http } from "./http.js";
import type { Control, Place } from "./places.js";
import { heed, Lifeline, rest } from "./waiting.js";

/** An answer that has begun, and its life. */
export interface Opened {
  response: Response;
  line: Lifeline;
}

export interface Following {
  path: string;
  place: Place;
  /** A connection that is open already. */
  opened?: Opened | undefined;
  /** Whether the stream ends with `done`, or goes on with the next turn. */
  endsWithDone: boolean;
  signal?: AbortSignal | undefined;
  onControl?: ((control: Control) => void) | undefined;
}

/** A broken connection is not an error but a reason to come back; only what is final is thrown. */
export async function* follow(http: Http, told: Following): AsyncGenerator<Followed, void, undefined> {
  const { place, signal } = told;
  const who = {};
  let { opened } = told;
  opened?.line.obey(signal);
  let attempt = 0;
  let pause: number | undefined;
  try {
    for (;;) {
      const line = opened?.line ?? new Lifeline(http.retry.heartbeat, signal);
      try {
        const response = opened?.response ?? (await openStream(http, told.path, place.lastId, line));
        opened = undefined;
        if (response === undefined) return; // The turn has ended, and all of it was here before.
        http.watch.forget(who);
        http.watch.reached();
        pause = undefined;
        for await (const frame of framesOf(response, line)) {
          if (frame.retry !== undefined) pause = frame.retry;
          const item = read(frame, told);
          if (item === undefined) continue;
          attempt = 0;
          yield item;
          if (told.endsWithDone && item.event?.type === "done") return;
        }
        if (pause === undefined) throw new TurnwireError(0, "broken_stream", "the stream ended before the turn did");
        await rest(pause, signal);
      } catch (error) {
        await http.bear(who, error, ++attempt, http.retry.streamAttempts, signal, pause);
      } finally {
        line.cut();
      }
    }
  } finally {
    opened?.line.cut();
    http.watch.forget(who);
  }
}

/** Undefined when there is nothing more to come. Throws TurnwireError. */
async function openStream(
  http: Http,
  path: string,
  lastId: string | undefined,
  line: Lifeline,
): Promise<Response | undefined> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (lastId !== undefined) headers["Last-Event-ID"] = lastId;
  const response = await line.heard(http.open({ path, headers }, line));
  return response.status === 204 ? undefined : checkStream(response);
}

/** What is not a stream comes from something between us and the server, which may be gone soon. */
export function checkStream(response: Response): Response {
  if (response.body && response.headers.get("Content-Type")?.startsWith("text/event-stream")) return response;
  throw new TurnwireError(0, "not_turnwire", "what answered there is not a stream of events");
}

async function* framesOf(response: Response, line: Lifeline): AsyncGenerator<Frame, void, undefined> {
  const parser = new FrameParser();
  for await (const bytes of chunksOf(response, line)) yield* parser.feed(bytes);
}

function read(frame: Frame, { place, onControl }: Following): Followed | undefined {
  if (frame.data === undefined) return undefined;
  const event = JSON.parse(frame.data) as TurnEvent | Control;
  if (frame.id === undefined) {
    const control = event as Control;
    if (control.type !== "reset" && control.type !== "gap" && control.type !== "reconnect") return undefined;
    if (onControl) heed(() => onControl(control));
    return place.control(control);
  }
  const placed = place.take(frame.id, event as TurnEvent);
  if (placed === "missing") throw new TurnwireError(0, "broken_stream", "an event is missing in the stream");
  return placed === "old" ? undefined : placed;
}

/**
 * A generator that can be left while it waits: `return` ends the connection first. One that was written plainly would
 * have to hear something before it could be left.
 */
export function leavable(
  signal: AbortSignal | undefined,
  run: (signal: AbortSignal) => AsyncGenerator<Followed, void, undefined>,
): AsyncGenerator<Followed, void, undefined> {
  const left = new AbortController();
  const leave = (): void => left.abort(signal?.reason);
  if (signal?.aborted) leave();
  else signal?.addEventListener("abort", leave);
  const inner = run(left.signal);
  let isLeft = false;
  const settle = async (step: Promise<IteratorResult<Followed, void>>): Promise<IteratorResult<Followed, void>> => {
    try {
      const result = await step;
      if (result.done) signal?.removeEventListener("abort", leave);
      return result;
    } catch (error) {
      signal?.removeEventListener("abort", leave);
      if (isLeft) return { done: true, value: undefined };
      throw error;
    }
  };
  const end = (): void => {
    isLeft = true;
    left.abort();
  };
  return {
    next: () => settle(inner.next()),
    return: () => {
      end();
      return settle(inner.return());
    },
    throw: async (error: unknown) => {
      end();
      await settle(inner.return());
      throw error;
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  } as AsyncGenerator<Followed, void, undefined>;
}
