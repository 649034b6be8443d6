/** `three_phase_text`: events as lines, then the answer, then a trailer. */

import { TurnwireError } from "./errors.js";
import type { Outcome, TurnEvent, Usage } from "./events.js";

export interface TextCitation {
  document_id: string;
  chunk_id: string;
  page_number: number | null;
  supporting_quote: string;
  source_tool: string;
  score: number | null;
  title?: string;
  url?: string;
}

export interface TextSpan {
  index: number;
  document_id: string;
  chunk_id: string | null;
  source_start: number | null;
  source_end: number | null;
  answer_start: number | null;
  answer_end: number | null;
  quote: string | null;
  heading?: string;
}

export type TextEvent = TurnEvent & { event: string; timestamp: string };

export interface TextTrailer {
  citations: TextCitation[];
  mode: string | null;
  tools_used: string[];
  spans: TextSpan[];
  events: TextEvent[];
  usage: Usage | null;
  timings: { [name: string]: number };
  outcome: Outcome;
  session_id: string;
  turn_id: string;
  error?: { code: string; message: string };
}

export type TextPiece =
  | { kind: "event"; event: TextEvent }
  | { kind: "text"; text: string }
  | { kind: "trailer"; trailer: TextTrailer };

const NEWLINE = 0x0a;
const ANSWER = 0x1d;
const TRAILER = 0x1e;

/**
 * Fed with bytes, cut anywhere. After a break, ask for the rest from `offset` and go on feeding the same one: it keeps the
 * half line, or half character, that it has.
 */
export class TextSplitter {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #phase: "events" | "text" | "trailer" = "events";
  #held = "";
  #offset = 0;

  /** How many bytes of the stream are here. Empty lines before the answer are heartbeats, and not a part of it. */
  get offset(): number {
    return this.#offset;
  }

  feed(bytes: Uint8Array): TextPiece[] {
    const pieces: TextPiece[] = [];
    let start = 0;
    while (this.#phase === "events" && start < bytes.length) {
      let end = start;
      while (end < bytes.length && bytes[end] !== NEWLINE && bytes[end] !== ANSWER) end++;
      this.#hold(bytes.subarray(start, end));
      start = end + 1;
      if (end < bytes.length) pieces.push(...this.#endLine(bytes[end]!));
    }
    if (this.#phase === "text" && start < bytes.length) {
      const end = bytes.indexOf(TRAILER, start);
      this.#hold(bytes.subarray(start, end < 0 ? bytes.length : end));
      start = end < 0 ? bytes.length : end + 1;
      if (this.#held) pieces.push({ kind: "text", text: this.#release() });
      if (end >= 0) this.#enter("trailer");
    }
    if (this.#phase === "trailer") this.#hold(bytes.subarray(start));
    return pieces;
  }

  /** The trailer, when the stream has ended. Throws TurnwireError `broken_stream` if something is missing. */
  end(): TextPiece {
    if (this.#phase !== "trailer") throw broken("it ended before its trailer");
    try {
      return { kind: "trailer", trailer: JSON.parse(this.#held) as TextTrailer };
    } catch (error) {
      throw broken("its trailer is not whole", error);
    }
  }

  #hold(bytes: Uint8Array): void {
    this.#offset += bytes.length;
    this.#held += this.#decoder.decode(bytes, { stream: true });
  }

  #release(): string {
    const held = this.#held;
    this.#held = "";
    return held;
  }

  #endLine(byte: number): TextPiece[] {
    const line = this.#release();
    if (byte === ANSWER) this.#enter("text");
    else if (line) this.#offset += 1;
    if (!line) return [];
    try {
      return [{ kind: "event", event: JSON.parse(line) as TextEvent }];
    } catch (error) {
      throw broken("a line is not JSON", error);
    }
  }

  #enter(phase: "text" | "trailer"): void {
    this.#phase = phase;
    this.#offset += 1;
  }
}

/** The pieces of a stream, as they come. Throws TurnwireError `broken_stream` if it ends before its trailer does. */
export async function* splitStreamedText(
  stream: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
  splitter: TextSplitter = new TextSplitter(),
): AsyncGenerator<TextPiece, void, undefined> {
  for await (const bytes of chunksOf(stream)) yield* splitter.feed(bytes);
  yield splitter.end();
}

/** Not every browser can iterate over a stream. */
async function* chunksOf(
  stream: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  if (!("getReader" in stream)) return yield* stream;
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    void reader.cancel().catch(() => {});
  }
}

function broken(why: string, cause?: unknown): TurnwireError {
  return new TurnwireError(0, "broken_stream", `the stream of text is broken: ${why}`, { cause });
}
