"""Turns over HTTP: connections are lost, and no word is said twice or never."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving import PATIENCE, Puppet, listen, quick_settings, saying, serving, until, within
from turnwire import Turnwire
from turnwire.channels.console.hosts import FoundTurn, Heard, HostError, Lost, Noted, Patience, RemoteHost, Server
from turnwire.core.events import TokenEvent

PATIENT = Patience(seconds=PATIENCE, pause=0.05, silence=PATIENCE)
QUICK = Patience(seconds=2, pause=0.05, silence=1)
"""For servers that do not come back."""


class Proxy:
    """Stands before a server and breaks connections when told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.requests: list[bytes] = []
        self.cut_after: int | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(self._up(reader, back), self._down(there, writer), return_exceptions=True)
        writer.close()
        back.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            self.requests.append(chunk)
            writer.write(chunk)
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while chunk := await reader.read(64):
            writer.write(chunk)
            passed += len(chunk)
            if self.cut_after is not None and passed > self.cut_after:
                self.cut()

    def cut(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.cut()


@asynccontextmanager
async def host_of(url: str, key: str | None = None, patience: Patience = PATIENT) -> AsyncIterator[RemoteHost]:
    host = RemoteHost(lambda: Server(url, key, is_local=True), patience)
    try:
        yield host
    finally:
        await host.close()


async def heard(host: RemoteHost, message: str = "Hello", **options: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        turn = host.converse(message, options.get("session_id"), options.get("agent"))
        async with aclosing(turn):
            return [one async for one in turn]


def text_of(told: list[Any]) -> str:
    return "".join(one.event.content for one in told if isinstance(one, Heard) and isinstance(one.event, TokenEvent))


async def test_a_turn_is_told_as_its_log_has_it(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Hello ", "you."), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, host_of(server.url) as host:
        told = await heard(host)
        assert [json.loads(one.body)["type"] for one in told] == [
            "session", "message", "token", "token", "response", "done",
        ]  # fmt: skip
        frames = await server.whole(told[0].event.turn_id)
        assert [one.body.decode() for one in told] == [frame.data for frame in frames]
        (session,) = await host.sessions(10)
        assert (session.id, session.title, session.turn_count) == (told[0].event.session_id, "Hello", 1)
        exchange = await host.last_exchange(session.id)
        assert exchange is not None
        assert (exchange.message, exchange.answer) == ("Hello", "Hello you.")
        again = await heard(host, "Again", session_id=session.id)
        assert again[0].event.session_id == session.id


async def test_a_connection_that_breaks_again_and_again_doubles_and_loses_nothing(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(200)]
    turnwire = Turnwire(saying(*words), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), host_of(url) as host:
        proxy.cut_after = 3_000
        told = await heard(host)
        assert text_of(told) == "".join(words)
        assert sum(isinstance(one, Lost) for one in told) >= 3
        assert sum(isinstance(one, FoundTurn) for one in told) >= 3
        assert await server.written() == (1, 1)


async def test_a_message_whose_answer_was_lost_is_sent_again_but_asked_once(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), host_of(url) as host:
        proxy.cut_after = 0  # Not even the status line gets through whole.
        hearing = asyncio.create_task(heard(host))
        part = await puppet.part()
        await until(lambda: len(proxy.requests) >= 2)
        proxy.cut_after = None
        part.say("Once.")
        part.end()
        told = await within(hearing)
        assert text_of(told) == "Once."
        assert len(puppet.parts) == 1
        assert all(b"POST /chat/stream" in request for request in proxy.requests[:2])


async def test_a_stream_that_the_server_ends_is_gone_on_with_and_nobody_is_troubled(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path, stream_lifetime=0.1))
    async with serving(turnwire) as server, proxied(server.port) as (proxy, url), host_of(url) as host:
        hearing = asyncio.create_task(heard(host))
        part = await puppet.part()
        part.say("One ")
        await until(lambda: sum(request.startswith(b"GET") for request in proxy.requests) >= 2)
        part.say("two.")
        part.end()
        told = await within(hearing)
        assert text_of(told) == "One two."
        assert not any(isinstance(one, Lost | FoundTurn) for one in told)


async def test_a_turn_is_stopped_where_it_runs(tmp_path: Path) -> None:
    puppet = Puppet()
    turnwire = Turnwire(puppet, settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, host_of(server.url) as host:
        turn = host.converse("Hello", None, None)
        async with aclosing(turn):
            first = await within(anext(turn))
            assert isinstance(first, Heard)
            await puppet.part()
            await host.cancel(first.event.turn_id)  # type: ignore[union-attr]
            last = [one async for one in turn][-1]
        assert json.loads(last.body)["outcome"] == "cancelled"  # type: ignore[union-attr]


async def test_what_the_server_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    turnwire = Turnwire(saying("Hello"), settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, host_of(server.url) as host:
        with pytest.raises(HostError, match="no agent"):
            await heard(host, agent="nobody")
        with pytest.raises(HostError, match="no session"):
            await heard(host, session_id="019a0000-0000-7000-8000-000000000000")
        with pytest.raises(HostError, match="no turn"):
            await host.cancel("nothing")
        await turnwire.keys.create("anna", ["read"])
        with pytest.raises(HostError, match=r"--key, or set TURNWIRE_API_KEY"):
            await heard(host)
        _, key = await turnwire.keys.create("anna", ["read", "write"])
        async with host_of(server.url, key) as known:
            assert text_of(await heard(known)) == "Hello"


async def test_a_server_that_is_not_there_is_said_at_once() -> None:
    listening = listen()
    port = listening.getsockname()[1]
    listening.close()
    async with host_of(f"http://127.0.0.1:{port}") as host:
        with pytest.raises(HostError, match=r"does not answer.*turnwire serve.*--embedded"):
            await heard(host)
        with pytest.raises(HostError, match="does not answer"):
            await host.sessions(1)


@asynccontextmanager
async def scripted(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A server that says what the test says, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        writer.write(answer(head + await reader.readexactly(length)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Turn-Id: t1\r\nConnection: close\r\n\r\n"
START = b'id: 1.1\ndata: {"type":"session","session_id":"s1","turn_id":"t1","agent":"a"}\n\n'
TOKEN = b'id: 3.1\ndata: {"type":"token","content":"One "}\n\n'
DONE = b'id: 9.1\ndata: {"type":"done","outcome":"completed","session_id":"s1","turn_id":"t1"}\n\n'


async def test_events_of_a_newer_server_are_left_out() -> None:
    odd = b'id: 2.1\ndata: {"type":"telepathy"}\n\n'
    async with scripted(lambda _: STREAM + START + odd + TOKEN + DONE) as url, host_of(url) as host:
        assert [json.loads(one.body)["type"] for one in await heard(host)] == ["session", "token", "done"]


async def test_what_is_gone_is_said_and_what_was_had_is_not_told_again() -> None:
    gap = b'data: {"type":"gap","after":0,"first_kept":3,"state":{}}\n\n'
    async with scripted(lambda _: STREAM + START + gap + TOKEN + TOKEN + DONE) as url, host_of(url) as host:
        told = await heard(host)
        assert [type(one) for one in told] == [Heard, Noted, Heard, Heard]
        assert text_of(told) == "One "


async def test_a_server_that_does_not_come_back_is_given_up_with_what_to_do() -> None:
    def answer(request: bytes) -> bytes:
        return STREAM + START + TOKEN if request.startswith(b"POST") else b"HTTP/1.1 503 Busy\r\n\r\n"

    async with scripted(answer) as url, host_of(url, patience=QUICK) as host:
        with pytest.raises(HostError, match=r"has not answered for \d+ seconds.*turnwire tail t1"):
            await heard(host)


async def test_a_server_that_sends_away_and_is_gone_is_told_as_lost() -> None:
    away = b'data: {"type":"reconnect","retry_ms":10}\n\n'
    tries: list[bytes] = []

    def answer(request: bytes) -> bytes:
        tries.append(request)
        if request.startswith(b"POST"):
            return STREAM + START + away
        return STREAM + TOKEN + DONE if len(tries) > 3 else b"HTTP/1.1 503 Busy\r\n\r\n"

    async with scripted(answer) as url, host_of(url, patience=QUICK) as host:
        assert [type(one) for one in await heard(host)] == [Heard, Lost, FoundTurn, Heard, Heard]


async def test_a_decision_is_posted() -> None:
    asked: list[bytes] = []

    def answer(request: bytes) -> bytes:
        asked.append(request)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"

    async with scripted(answer) as url, host_of(url) as host:
        await host.decide("t1", "call/1", approved=True)
        await host.decide("t1", "c", approved=False, reason="no")
    assert asked[0].startswith(b"POST /v1/turns/t1/approvals/call%2F1 ")
    assert json.loads(asked[0].partition(b"\r\n\r\n")[2]) == {"approved": True}
    assert json.loads(asked[1].partition(b"\r\n\r\n")[2]) == {"approved": False, "reason": "no"}
