/** `three_phase_text`: event lines, the answer, and a trailer. */

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
 * A parser that is fed with chunks of bytes. After a lost connection, request the rest from `offset` and feed the same
 * splitter: it keeps a partial line or character.
 */
export class TextSplitter {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #phase: "events" | "text" | "trailer" = "events";
  #buffer = "";
  #offset = 0;

  /** The bytes read so far, without heartbeats (empty lines before the answer). */
  get offset(): number {
    return this.#offset;
  }

  feed(bytes: Uint8Array): TextPiece[] {
    const pieces: TextPiece[] = [];
    let start = 0;
    while (this.#phase === "events" && start < bytes.length) {
      let end = start;
      while (end < bytes.length && bytes[end] !== NEWLINE && bytes[end] !== ANSWER) end++;
      this.#append(bytes.subarray(start, end));
      start = end + 1;
      if (end < bytes.length) pieces.push(...this.#endLine(bytes[end]!));
    }
    if (this.#phase === "text" && start < bytes.length) {
      const end = bytes.indexOf(TRAILER, start);
      this.#append(bytes.subarray(start, end < 0 ? bytes.length : end));
      start = end < 0 ? bytes.length : end + 1;
      if (this.#buffer) pieces.push({ kind: "text", text: this.#flush() });
      if (end >= 0) this.#enter("trailer");
    }
    if (this.#phase === "trailer") this.#append(bytes.subarray(start));
    return pieces;
  }

  /** Returns the trailer after the end of the stream. Throws TurnwireError `broken_stream` if it is incomplete. */
  end(): TextPiece {
    if (this.#phase !== "trailer") throw broken("it ended before the trailer");
    try {
      return { kind: "trailer", trailer: JSON.parse(this.#buffer) as TextTrailer };
    } catch (error) {
      throw broken("the trailer is incomplete", error);
    }
  }

  #append(bytes: Uint8Array): void {
    this.#offset += bytes.length;
    this.#buffer += this.#decoder.decode(bytes, { stream: true });
  }

  #flush(): string {
    const buffer = this.#buffer;
    this.#buffer = "";
    return buffer;
  }

  #endLine(byte: number): TextPiece[] {
    const line = this.#flush();
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

/** Yields the pieces of a stream. Throws TurnwireError `broken_stream` if it ends before its trailer does. */
export async function* splitStreamedText(
  stream: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
  splitter: TextSplitter = new TextSplitter(),
): AsyncGenerator<TextPiece, void, undefined> {
  for await (const bytes of chunksOf(stream)) yield* splitter.feed(bytes);
  yield splitter.end();
}

/** Yields chunks with a reader, because not every browser can iterate over a stream. */
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
  return new TurnwireError(0, "broken_stream", `the text stream is broken: ${why}`, { cause });
}
