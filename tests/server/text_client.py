"""A client of `three_phase_text` that knows only what the guide says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from tests.serving import PATIENCE, Client, Part, Puppet, Served, within
from turnwire.core.log.events import CitationEvent, Event, Hit, SearchEvent, StatusEvent

HIT = Hit(1, "tides.md", "tides.md#1", "Tides", text="High water is at noon – 正午.")
SEARCH = (
    SearchEvent("r1", "started", "find", "tides"),
    SearchEvent("r1", "finished", "find", "tides", hits=(HIT,), ms=1.5),
)
CITATION = CitationEvent(1, "tides.md", "tides.md#1", "Tides", supporting_quote="High water is at noon")
LINES = (*SEARCH, "High water ", "is at noon – 正午 😀 [1].", StatusEvent("checking"), CITATION, "\n\nThat is all.")
"""The events of a turn with something in every phase."""
ANSWER = "High water is at noon – 正午 😀 [1].\n\nThat is all."


class TextReader:
    """An open text stream; `body` is every byte so far."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.headers = response.headers
        self.turn_id: str = response.headers["x-turn-id"]
        self.session_id: str = response.headers["x-session-id"]
        self.body = b""
        self._chunks = response.aiter_raw()

    async def until(self, ending: bytes) -> bytes:
        """Reads until these bytes have come; everything so far."""
        async with asyncio.timeout(PATIENCE):
            while ending not in self.body:
                self.body += await anext(self._chunks)
        return self.body

    async def size(self, size: int) -> bytes:
        """Reads until so many bytes have come; everything so far."""
        async with asyncio.timeout(PATIENCE):
            while len(self.body) < size:
                self.body += await anext(self._chunks)
        return self.body

    async def rest(self) -> bytes:
        """Reads to the end; everything."""
        async with asyncio.timeout(PATIENCE):
            async for chunk in self._chunks:
                self.body += chunk
        return self.body

    async def broken(self) -> bytes:
        """Reads until the connection breaks, which it must; everything that came."""
        try:
            await self.rest()
        except httpx.TransportError:
            return self.body
        raise AssertionError(f"the stream ended as if it were whole: {self.body!r}")


def phases(body: bytes) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    """Return the events, the answer and the trailer of a whole stream."""
    lines, _, rest = body.decode().partition("\x1d")
    answer, separator, trailer = rest.partition("\x1e")
    assert separator
    return [json.loads(line) for line in lines.split("\n") if line], answer, json.loads(trailer)


@asynccontextmanager
async def text(client: Client, method: str, path: str, **request: Any) -> AsyncIterator[TextReader]:
    async with client.http.stream(method, path, **request) as response:
        if response.status_code != 200:
            raise AssertionError(f"{response.status_code}: {(await response.aread()).decode()}")
        yield TextReader(response)


def messages(session: str = "s", stream: bool = True) -> str:
    return f"/v1/rag/sessions/{session}/messages" + ("/stream" if stream else "")


def ask(
    client: Client, message: str = "Hello", session: str = "s", headers: dict[str, str] | None = None, **body: Any
) -> Any:
    """Opens POST /v1/rag/sessions/{id}/messages/stream; it answers when there is something to say."""
    return text(client, "POST", messages(session), json={"message": message, **body}, headers=headers)


def resume(client: Client, turn_id: str, offset: int | None = None, **params: Any) -> Any:
    """Opens GET /v1/turns/{id}/events on the text wire."""
    if offset is not None:
        params["offset"] = offset
    return text(client, "GET", f"/v1/turns/{turn_id}/events", params={"wire": "three_phase_text", **params})


async def begun(
    stack: AsyncExitStack, server: Served, puppet: Puppet, *lines: Event | str, **question: Any
) -> tuple[TextReader, Part]:
    """Asks, has the puppet say this, and waits for the stream to begin."""
    asking = asyncio.create_task(stack.enter_async_context(ask(server, **question)))
    part = await puppet.part()
    part.say(*lines)
    return await within(asking), part


async def finished(server: Served, puppet: Puppet, *lines: Event | str) -> tuple[str, bytes]:
    """A turn that has said this and ended: its id, and its whole stream."""
    async with AsyncExitStack() as stack:
        reader, part = await begun(stack, server, puppet, *(lines or LINES))
        part.end()
        return reader.turn_id, await reader.rest()
