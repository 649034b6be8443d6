"""The body of a response: chunks written to uvicorn's transport are those that its own `send` writes."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.serving import PATIENCE
from turnwire.server.auth import Caller
from turnwire.server.streams import connection as module
from turnwire.server.streams.connection import BrokenStreamError, Send, StreamConnection, write_chunk
from turnwire.wires.sse_chat.encoder import SseChat

ANN = Caller("ann", ())
Headers = list[tuple[bytes, bytes]]
BODIES = (b"a", b"x" * 15, b"x" * 16, b"x" * 255, b"x" * 256, b"\r\n0\r\n\r\n", "é日本".encode(), b"x" * 70_000)


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


class Response:
    """A response of uvicorn that has begun, over a transport that records what is written."""

    def __init__(self, method: str = "GET", headers: Headers | None = None) -> None:
        self.transport = RecordingTransport()
        self.flow = FlowControl(self.transport)
        self.cycle = RequestResponseCycle(
            scope={"type": "http", "method": method},  # type: ignore[arg-type]
            transport=self.transport,
            flow=self.flow,
            logger=logging.getLogger("uvicorn"),
            access_logger=logging.getLogger("uvicorn.access"),
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=lambda: None,
        )
        self._headers = headers or []

    async def begin(self) -> "Response":
        await self.cycle.send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self.transport.written.clear()
        return self

    async def send(self, body: bytes) -> None:
        await self.cycle.send({"type": "http.response.body", "body": body, "more_body": True})

    def connection(self, send: Send | None = None) -> StreamConnection:
        return StreamConnection(send or self.cycle.send, SseChat(), ANN)  # type: ignore[arg-type]

    @property
    def written(self) -> list[bytes]:
        return self.transport.written


class CountingSend:
    """uvicorn's `send` as `StreamConnection` finds it, which counts its calls."""

    def __init__(self, response: Response, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        send = response.cycle.send

        async def counted(cycle: RequestResponseCycle, message: Any) -> None:
            self.calls += 1
            await send(message)

        monkeypatch.setattr(RequestResponseCycle, "send", counted)


async def test_the_installed_uvicorn_has_what_write_chunk_reads() -> None:
    """If this fails, uvicorn has changed: compare its `send` with `write_chunk`, then mend or remove `write_chunk`."""
    assert module.takes_chunks(RequestResponseCycle)
    cycle = (await Response().begin()).cycle
    assert (cycle.disconnected, cycle.flow.write_paused, cycle.response_complete) == (False, False, False)
    assert cycle.chunked_encoding is True


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{len(body)} bytes")
async def test_a_chunk_has_the_bytes_of_send(body: bytes) -> None:
    sent, written = await Response().begin(), await Response().begin()
    await sent.send(body)
    assert write_chunk(written.cycle, body)
    assert written.written == sent.written


async def test_a_whole_response_has_the_bytes_of_send(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, written = await Response().begin(), await Response().begin()
    for body in BODIES:
        await sent.send(body)
    await sent.cycle.send({"type": "http.response.body", "body": b"end", "more_body": False})
    counting = CountingSend(written, monkeypatch)
    connection = written.connection()
    for body in BODIES:
        connection.write(body)
    assert counting.calls == 0, "every chunk but the last goes to the transport"
    connection.write(b"end", last=True)
    assert counting.calls == 1
    assert written.written == sent.written
    assert written.cycle.response_complete


def paused(response: Response) -> None:
    response.flow.pause_writing()


def disconnected(response: Response) -> None:
    response.cycle.disconnected = True


def completed(response: Response) -> None:
    response.cycle.response_complete = True


@pytest.mark.parametrize("change", [paused, disconnected, completed])
async def test_nothing_is_written_where_send_would_not(change: Callable[[Response], None]) -> None:
    response = await Response().begin()
    change(response)
    assert not write_chunk(response.cycle, b"late")
    assert response.written == []


async def test_paused_flow_blocks_the_connection_until_there_is_room() -> None:
    response = await Response().begin()
    connection = response.connection()
    writable = asyncio.Event()
    connection.on_writable = writable.set
    response.flow.pause_writing()
    connection.write(b"first")
    assert (connection.is_blocked, response.written) == (True, [])
    response.flow.resume_writing()
    async with asyncio.timeout(PATIENCE):
        await writable.wait()
    connection.write(b"second")
    assert b"".join(response.written) == b"5\r\nfirst\r\n6\r\nsecond\r\n"


async def test_nothing_is_written_to_a_client_that_has_left() -> None:
    response = await Response().begin()
    response.cycle.disconnected = True
    response.connection().write(b"late")
    assert response.written == []


@pytest.mark.parametrize("headers", [[], [(b"transfer-encoding", b"chunked")]], ids=["plain", "declared as chunked"])
async def test_head_has_no_body(headers: Headers) -> None:
    response = await Response("HEAD", headers).begin()
    response.connection().write(b"body")
    assert b"".join(response.written) == b""


async def test_a_body_with_a_length_is_not_chunked() -> None:
    response = await Response(headers=[(b"content-length", b"8")]).begin()
    connection = response.connection()
    connection.write(b"four")
    connection.write(b"more", last=True)
    assert b"".join(response.written) == b"fourmore"


async def test_a_wrapped_send_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    response = await Response().begin()
    messages: list[dict[str, Any]] = []

    async def wrapped(message: dict[str, Any]) -> None:
        messages.append(message)

    connection = response.connection(wrapped)
    await connection.written(b"frame")
    assert messages == [{"type": "http.response.body", "body": b"frame", "more_body": True}]
    assert response.written == []


@pytest.mark.parametrize("name", ["disconnected", "chunked_encoding", "response_complete", "flow"])
async def test_send_is_used_if_a_later_uvicorn_lacks_an_attribute(name: str) -> None:
    response = await Response().begin()
    delattr(response.cycle, name)
    assert not write_chunk(response.cycle, b"frame")
    assert response.written == []


async def test_error_of_send_is_the_client_that_has_left() -> None:
    """Uvicorn drops what is sent to a client that has left; other servers raise an OSError."""

    async def send(message: dict[str, Any]) -> None:
        raise OSError("the client has left")

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    connection = StreamConnection(send, SseChat(), ANN)
    await connection.written(b"frame")
    assert await connection.closed(receive)


async def test_connection_that_is_aborted_twice_breaks_once() -> None:
    """A server without a transport to abort: the second abort may come while the first one takes effect."""
    loop = asyncio.get_running_loop()
    aborted_again = loop.create_future()

    async def send(message: dict[str, Any]) -> None:
        pass

    async def receive() -> dict[str, Any]:
        loop.call_soon(connection.abort)
        loop.call_soon(lambda: loop.call_soon(abort_again))
        return await loop.create_future()

    def abort_again() -> None:
        try:
            aborted_again.set_result(connection.abort())
        except RuntimeError as error:
            aborted_again.set_exception(error)

    connection = StreamConnection(send, SseChat(), ANN)
    with pytest.raises(BrokenStreamError):
        await connection.closed(receive)
    await aborted_again
