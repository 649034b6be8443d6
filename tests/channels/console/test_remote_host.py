"""Tests of Host: turns over HTTP, with lost connections and restarted servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.client.servers import proxied, scripted
from tests.serving import PATIENCE, Puppet, listen, quick_settings, saying, serving, until, within
from turnwire import Turnwire
from turnwire.channels.console.host import Host
from turnwire.cli.server_errors import HostError
from turnwire.client import (
    ConnectionLost,
    ConnectionRestored,
    Gap,
    ReceivedEvent,
    ReconnectLimits,
    ServerAddress,
    TurnUpdate,
)
from turnwire.core.backoff import Backoff
from turnwire.core.log.events import TokenEvent

PATIENT = ReconnectLimits(give_up_seconds=PATIENCE, backoff=Backoff(first=0.01, longest=0.05), read_timeout=PATIENCE)
QUICK = ReconnectLimits(give_up_seconds=1, backoff=Backoff(first=0.01, longest=0.05), read_timeout=PATIENCE)
"""Limits for servers that do not come back."""


@asynccontextmanager
async def host_of(url: str, key: str | None = None, limits: ReconnectLimits = PATIENT) -> AsyncIterator[Host]:
    host = Host(lambda: ServerAddress(url, key, is_local=True), limits)
    try:
        yield host
    finally:
        await host.aclose()


async def converse(host: Host, message: str = "Hello", **options: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        turn = host.converse(message, **options)
        async with aclosing(turn):
            return [update async for update in turn]


def text_of(updates: list[TurnUpdate]) -> str:
    events = (update.event for update in updates if isinstance(update, ReceivedEvent))
    return "".join(event.content for event in events if isinstance(event, TokenEvent))


async def test_converse_yields_the_events_of_the_log(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Hello ", "you."), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, host_of(server.url) as host:
        updates = await converse(host)
        assert [json.loads(update.body)["type"] for update in updates] == [
            "session", "message", "token", "token", "response", "done",
        ]  # fmt: skip
        frames = await server.whole(updates[0].event.turn_id)
        assert [update.body.decode() for update in updates] == [frame.data for frame in frames]
        (session,) = await host.sessions(10)
        assert (session.id, session.title, session.turn_count) == (updates[0].event.session_id, "Hello", 1)
        assert await host.last_exchange(session.id) == ("Hello", "Hello you.")
        again = await converse(host, "Again", session_id=session.id)
        assert again[0].event.session_id == session.id


async def test_converse_over_repeated_disconnects_neither_repeats_nor_loses_events(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(200)]
    turnwire = Turnwire(saying(*words), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), host_of(url) as host:
        proxy.cut_after = 3_000
        updates = await converse(host)
        assert text_of(updates) == "".join(words)
        assert sum(isinstance(update, ConnectionLost) for update in updates) >= 3
        assert sum(isinstance(update, ConnectionRestored) for update in updates) >= 3
        assert await server.written() == (1, 1)


async def test_message_with_lost_response_is_resent_and_starts_one_turn(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), host_of(url) as host:
        proxy.cut_after = 0  # Not even the status line arrives whole.
        conversation = asyncio.create_task(converse(host))
        part = await puppet.part()
        await until(lambda: len(proxy.requests) >= 2)
        proxy.cut_after = None
        part.say("Once.")
        part.end()
        updates = await within(conversation)
        assert text_of(updates) == "Once."
        assert len(puppet.parts) == 1
        assert all(b"POST /chat/stream" in request for request in proxy.requests[:2])


async def test_reconnect_requested_by_the_server_is_not_reported(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path, stream_lifetime=0.1))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), host_of(url) as host:
        conversation = asyncio.create_task(converse(host))
        part = await puppet.part()
        part.say("One ")
        await until(lambda: sum(request.startswith(b"GET") for request in proxy.requests) >= 2)
        part.say("two.")
        part.end()
        updates = await within(conversation)
        assert text_of(updates) == "One two."
        assert not any(isinstance(update, ConnectionLost | ConnectionRestored) for update in updates)


async def test_cancel_ends_the_turn_on_the_server(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, host_of(server.url) as host:
        turn = host.converse("Hello")
        async with aclosing(turn):
            first = await within(anext(turn))
            assert isinstance(first, ReceivedEvent)
            await puppet.part()
            await host.cancel(first.event.turn_id)  # type: ignore[union-attr]
            last = [update async for update in turn][-1]
        assert json.loads(last.body)["outcome"] == "cancelled"  # type: ignore[union-attr]


async def test_refused_request_raises_the_message_of_the_server(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Hello"), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, host_of(server.url) as host:
        with pytest.raises(HostError, match="no agent"):
            await converse(host, agent="nobody")
        with pytest.raises(HostError, match="no session"):
            await converse(host, session_id="019a0000-0000-7000-8000-000000000000")
        with pytest.raises(HostError, match="no turn"):
            await host.cancel("nothing")
        await turnwire.keys.create("anna", ["read"])
        with pytest.raises(HostError, match=r"--key, or set TURNWIRE_API_KEY"):
            await converse(host)
        _, key = await turnwire.keys.create("anna", ["read", "write"])
        async with host_of(server.url, key) as authorized:
            assert text_of(await converse(authorized)) == "Hello"


async def test_unreachable_server_raises_at_once_with_a_hint() -> None:
    listening = listen()
    port = listening.getsockname()[1]
    listening.close()
    async with host_of(f"http://127.0.0.1:{port}") as host:
        with pytest.raises(HostError, match=r"does not answer.*turnwire serve.*--embedded"):
            await converse(host)
        with pytest.raises(HostError, match="does not answer"):
            await host.sessions(1)


SNAPSHOT = b'{"turn_id":"t1","session_id":"s1","agent":"a","message":"Hello","phase":"running","position":1,"state":{}}'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Turn-Id: t1\r\nConnection: close\r\n\r\n"
START = b'id: 1.1\ndata: {"type":"session","session_id":"s1","turn_id":"t1","agent":"a"}\n\n'
TOKEN = b'id: 3.1\ndata: {"type":"token","content":"One "}\n\n'
DONE = b'id: 9.1\ndata: {"type":"done","outcome":"completed","session_id":"s1","turn_id":"t1"}\n\n'


async def test_unknown_events_of_a_newer_server_are_skipped() -> None:
    unknown = b'id: 2.1\ndata: {"type":"telepathy"}\n\n'
    async with scripted(lambda _: STREAM + START + unknown + TOKEN + DONE) as url, host_of(url) as host:
        assert [json.loads(update.body)["type"] for update in await converse(host)] == ["session", "token", "done"]


async def test_gap_is_reported_and_repeated_events_are_skipped() -> None:
    gap = b'data: {"type":"gap","after":0,"first_kept":3,"state":{}}\n\n'
    async with scripted(lambda _: STREAM + START + gap + TOKEN + TOKEN + DONE) as url, host_of(url) as host:
        updates = await converse(host)
        assert [type(update) for update in updates] == [ReceivedEvent, Gap, ReceivedEvent, ReceivedEvent]
        assert text_of(updates) == "One "


async def test_lost_server_is_given_up_with_a_hint() -> None:
    def answer(request: bytes) -> bytes:
        return STREAM + START + TOKEN if request.startswith(b"POST") else b"HTTP/1.1 503 Busy\r\n\r\n"

    async with scripted(answer) as url, host_of(url, limits=QUICK) as host:
        with pytest.raises(HostError, match=r"has not answered for \d+ seconds.*turnwire tail t1"):
            await converse(host)


async def test_requested_reconnect_that_fails_is_reported_as_lost() -> None:
    reconnect = b'data: {"type":"reconnect","retry_ms":10}\n\n'
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        if request.startswith(b"POST"):
            return STREAM + START + reconnect
        return STREAM + TOKEN + DONE if len(requests) > 3 else b"HTTP/1.1 503 Busy\r\n\r\n"

    async with scripted(answer) as url, host_of(url) as host:
        assert [type(update) for update in await converse(host)] == [
            ReceivedEvent, ConnectionLost, ConnectionRestored, ReceivedEvent, ReceivedEvent,
        ]  # fmt: skip


async def test_decide_posts_the_decision() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + SNAPSHOT

    async with scripted(answer) as url, host_of(url) as host:
        await host.decide("t1", "call/1", approved=True)
        await host.decide("t1", "c", approved=False, reason="no")
    assert requests[0].startswith(b"POST /v1/turns/t1/approvals/call%2F1 ")
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2]) == {"approved": True}
    assert json.loads(requests[1].partition(b"\r\n\r\n")[2]) == {"approved": False, "reason": "no"}
