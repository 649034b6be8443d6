"""A model server that streams one pre-encoded Chat Completions answer: `python -m bench.model_server`.

It has its own core and does as little as possible, so that the client is what is measured.
"""

import argparse
import asyncio
import json

from bench import measure

WORD = " token"


def answer(tokens: int) -> list[bytes]:
    """Return the answer's HTTP chunks, one per piece, as a model server writes them."""
    start = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "bench"}

    def piece(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return framed(json.dumps({**start, "choices": [choice], "usage": None}))

    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": tokens + 5}
    return [
        piece({"role": "assistant", "content": ""}),
        *[piece({"content": WORD})] * tokens,
        piece({}, "stop"),
        framed(json.dumps({**start, "choices": [], "usage": usage})),
        framed("[DONE]"),
        b"0\r\n\r\n",
    ]


def framed(text: str) -> bytes:
    body = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


async def serve(port: int, tokens: int) -> None:
    pieces = answer(tokens)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                writer.write(HEAD)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("port", "core", "tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    measure.pin(options.core)
    asyncio.run(serve(options.port, options.tokens))
