/** A parser of server-sent events, fed with chunks of bytes. */

export interface Frame {
  id?: string;
  data?: string;
  /** Milliseconds to wait before reconnecting. */
  retry?: number;
}

/**
 * Lines end with LF alone, and data is ASCII: no other character may split a line. A frame without its empty line is
 * incomplete and is not returned.
 */
export class FrameParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #frame: Frame = {};

  feed(bytes: Uint8Array): Frame[] {
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n");
    this.#rest = lines.pop()!;
    const frames: Frame[] = [];
    for (const line of lines) {
      if (line === "" || line === "\r") {
        if (this.#frame.data !== undefined || this.#frame.retry !== undefined) frames.push(this.#frame);
        this.#frame = {};
      } else this.#take(line.endsWith("\r") ? line.slice(0, -1) : line);
    }
    return frames;
  }

  #take(line: string): void {
    const colon = line.indexOf(":");
    // A comment, such as a heartbeat, has an empty name.
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#frame.data = this.#frame.data === undefined ? value : `${this.#frame.data}\n${value}`;
    else if (name === "id") this.#frame.id = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.#frame.retry = Number(value);
  }
}
