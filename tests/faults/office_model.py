"""The model of the campaign against agents: a scripted server in its own process, which counts requests in a file.

It writes slowly, so that processes are killed in the middle of its answers.
"""

import asyncio
import os
import sys
from dataclasses import replace
from itertools import chain

from tests.contracts.office import reply, tag_of
from tests.scripted_model import Answer, Request, scripted_model

FINAL = " ".join(f"word{number}" for number in range(40)) + "."
_WORD_SECONDS = 0.015


def paced(answer: Answer) -> Answer:
    """Return the answer with a pause before each of its pieces."""
    loop = asyncio.get_running_loop()
    gates = [asyncio.Event() for _ in answer.pieces]
    for number, gate in enumerate(gates, 1):
        loop.call_later(number * _WORD_SECONDS, gate.set)
    return replace(answer, pieces=tuple(chain.from_iterable(zip(gates, answer.pieces, strict=True))))


async def serve(path: str) -> None:
    requests = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def answer(request: Request) -> Answer:
        os.write(requests, f"{tag_of(request)}\n".encode())
        return paced(reply(request, FINAL))

    async with scripted_model() as server:
        server.otherwise = answer
        print(f"listening on {server.url}", flush=True)
        await asyncio.to_thread(sys.stdin.read)  # Until the campaign ends.


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
