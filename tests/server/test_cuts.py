"""Connections that break at random bytes: clients that can resume get the whole answer, others notice the break.

Every wire is cut 60 times, or 12 with `--fast`. Turns are live while they are read, and have mostly ended before the
last of their cuts.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import WebSocketException

from tests.examples import examples
from tests.server.chat_client import asks
from tests.server.chat_client import body as chat_body
from tests.server.conftest import Serve
from tests.server.cutting_proxy import cutting
from tests.server.socket_client import talking
from tests.server.test_ag_ui import run_input
from tests.serving import Client, Served, within
from turnwire.core.log.events import CitationEvent, Event, StatusEvent, ToolCallEvent, ToolResultEvent
from turnwire.core.log.turns import Turn

CUTS = examples(60)
PIECES = [f"{number} é " for number in range(150)]
ANSWER = "".join(PIECES)
BROKEN = (httpx.TransportError, WebSocketException, ConnectionError, EOFError)


async def tell(turn: Turn) -> AsyncIterator[Event | str]:
    yield StatusEvent("reading")
    yield ToolCallEvent("c1", "find", {"what": "é"})
    yield ToolResultEvent("c1", "find", True, "found")
    for piece in PIECES:
        yield piece
        await asyncio.sleep(0.0005)  # So that it is read while it is made.
    yield CitationEvent(1, "doc", "chunk", url="https://example.org")


class Seen:
    """The whole frames, or bytes, that a client has received over all its connections."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.raw = b""
        self.last: str | None = None
        self.is_whole = False

    def texts(self, kind: str, field: str) -> str:
        return "".join(frame[field] for frame in self.frames if frame.get("type") == kind)


async def frames(
    client: Client, method: str, path: str, last: str | None = None, **request: Any
) -> AsyncIterator[tuple[str, str]]:
    """Yield the id and data of each whole frame. Raises the error of a broken connection."""
    headers = {} if last is None else {"Last-Event-ID": last}
    rest = b""
    async with client.http.stream(method, path, headers=headers, **request) as response:
        assert response.status_code == 200, (response.status_code, await response.aread())
        async for chunk in response.aiter_raw():
            *blocks, rest = (rest + chunk).split(b"\n\n")
            for block in blocks:
                lines = (line.partition(b": ") for line in block.split(b"\n"))
                fields = {name: value for name, _, value in lines}
                if b"data" in fields:
                    yield fields.get(b"id", b"").decode(), fields[b"data"].decode()


# Clients that resume. Each begins a turn, and reads it on from where it was, once.


class SseChat:
    most_bytes = 2_500
    """Return how many bytes a connection lets through: more than the largest frame, to make progress."""

    async def begin(self, server: Served) -> str:
        return await server.start()

    async def read(self, client: Client, turn_id: str, seen: Seen) -> None:
        async for frame_id, data in frames(client, "GET", f"/v1/turns/{turn_id}/events", seen.last):
            seen.frames.append(json.loads(data))
            seen.last = frame_id
            seen.is_whole = seen.frames[-1]["type"] == "done"

    def answer(self, seen: Seen) -> str:
        return seen.texts("token", "content")


class ThreePhaseText(SseChat):
    async def read(self, client: Client, turn_id: str, seen: Seen) -> None:
        query = f"?wire=three_phase_text&offset={len(seen.raw)}" if seen.raw else "?wire=three_phase_text"
        async with client.http.stream("GET", f"/v1/turns/{turn_id}/events{query}") as response:
            if response.status_code != 204:  # It had everything but the end of the connection.
                assert response.status_code == 200
                async for chunk in response.aiter_raw():
                    seen.raw += chunk
        seen.is_whole = True

    def answer(self, seen: Seen) -> str:
        return seen.raw.split(b"\x1d")[1].split(b"\x1e")[0].decode()


class AgUi(SseChat):
    """Begins and goes on with the same request."""

    async def begin(self, server: Served) -> str:
        return uuid4().hex

    async def read(self, client: Client, run_id: str, seen: Seen) -> None:
        body = run_input(run_id, thread=f"thread-{run_id}")
        async for frame_id, data in frames(client, "POST", "/ag-ui", seen.last, json=body):
            seen.frames.append(json.loads(data))
            seen.last = frame_id
            seen.is_whole = seen.frames[-1]["type"] == "RUN_FINISHED"

    def answer(self, seen: Seen) -> str:
        return seen.texts("TEXT_MESSAGE_CONTENT", "delta")


class OpenAIResponses(SseChat):
    most_bytes = 8_000  # Its last frames repeat the whole answer.

    async def begin(self, server: Served) -> str:
        body = {"model": "turnwire", "input": "Tell", "background": True}
        return (await server.http.post("/v1/responses", json=body)).json()["id"]

    async def read(self, client: Client, response_id: str, seen: Seen) -> None:
        after = "" if seen.last is None else f"&starting_after={seen.last}"
        async for _, data in frames(client, "GET", f"/v1/responses/{response_id}?stream=true{after}"):
            if data != "[DONE]":
                seen.frames.append(json.loads(data))
                seen.last = str(seen.frames[-1]["sequence_number"])
                seen.is_whole = seen.frames[-1]["type"] == "response.completed"

    def answer(self, seen: Seen) -> str:
        return seen.texts("response.output_text.delta", "delta")


class AiSdkByChunk(SseChat):
    async def begin(self, server: Served) -> str:
        body = chat_body(asks("Tell"), chat=uuid4().hex)
        async with server.stream("POST", "/api/chat", json=body) as stream:
            return stream.headers["x-workflow-run-id"]

    async def read(self, client: Client, run_id: str, seen: Seen) -> None:
        path = f"/api/chat/{run_id}/stream?startIndex={len(seen.frames)}"
        async for _, data in frames(client, "GET", path):
            if data != "[DONE]":
                seen.frames.append(json.loads(data))
                seen.is_whole = seen.frames[-1]["type"] == "finish"

    def answer(self, seen: Seen) -> str:
        return seen.texts("text-delta", "delta")


class WebSocket(SseChat):
    async def read(self, client: Client, turn_id: str, seen: Seen) -> None:
        async with talking(client, ping_interval=None) as talk:
            await talk.say("follow", turn_id=turn_id, after=int(seen.last or 0))
            while not seen.is_whole:
                message = await talk.hear()
                if message["type"] == "event":
                    seen.frames.append(message["event"])
                    assert message["position"] == len(seen.frames)
                    seen.last = str(message["position"])
                    seen.is_whole = message["event"]["type"] == "done"


RESUMING = (SseChat, ThreePhaseText, AgUi, OpenAIResponses, AiSdkByChunk, WebSocket)


@pytest.mark.parametrize("wire_class", RESUMING, ids=lambda wire_class: wire_class.__name__)
async def test_a_client_that_resumes_ends_with_the_whole_answer(serve: Serve, wire_class: type[SseChat]) -> None:
    wire, chance = wire_class(), random.Random(wire_class.__name__)
    async with (
        serve(tell, max_open_streams=10_000) as server,
        cutting(server, lambda: chance.randrange(wire.most_bytes)) as (client, cutter),
    ):
        while cutter.cuts < CUTS:
            which, seen, uncut = await wire.begin(server), Seen(), Seen()
            while not seen.is_whole:
                with suppress(*BROKEN):
                    await within(wire.read(client, which, seen))
            await within(wire.read(server, which, uncut))
            assert wire.answer(seen) == ANSWER
            assert (seen.frames, seen.raw) == (uncut.frames, uncut.raw)


# Clients that cannot resume: they ask for the whole again.


async def full_replay(client: Client, turn_id: str) -> list[str]:
    return [data async for _, data in frames(client, "GET", f"/api/chat/{turn_id}/stream")]


async def completion(client: Client, turn_id: str) -> list[str]:
    return [data async for _, data in frames(client, "GET", f"/v1/turns/{turn_id}/events?wire=openai_chat")]


@pytest.mark.parametrize("read", [full_replay, completion])
async def test_client_without_resume_never_mistakes_a_part_for_the_whole(
    serve: Serve, read: Callable[[Client, str], Awaitable[list[str]]]
) -> None:
    chance = random.Random(read.__name__)
    async with serve(tell, max_open_streams=10_000) as server:
        turn_id = await server.start()
        whole = await within(read(server, turn_id))
        assert whole[-1] == "[DONE]"
        size = sum(map(len, whole)) + 12 * len(whole)
        failed = succeeded = 0
        async with cutting(server, lambda: chance.randrange(size + size // 4)) as (client, cutter):
            while cutter.cuts < CUTS or not succeeded:
                try:
                    assert await within(read(client, turn_id)) == whole
                    succeeded += 1
                except httpx.TransportError:
                    failed += 1
            assert failed == cutter.cuts
