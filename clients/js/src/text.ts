/** `three_phase_text`: events as lines, then the answer, then a trailer. */

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

/** Fed with bytes, cut anywhere. `offset` is where to resume, `isWhole` whether nothing is missing. */
export declare class TextSplitter {
  readonly offset: number;
  readonly isWhole: boolean;
  feed(bytes: Uint8Array): TextPiece[];
  /** Throws TurnwireError `broken_stream` if something is missing. */
  end(): TextPiece[];
}

/** The pieces of one stream, as they come. Throws TurnwireError `broken_stream` if it ends before the trailer does. */
export declare function splitStreamedText(
  stream: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
  splitter?: TextSplitter,
): AsyncGenerator<TextPiece, void, undefined>;
