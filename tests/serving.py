"""Real servers for tests, scripted agents, and a client that implements only the protocol.

`serving` is uvicorn on a real socket, on the test's own event loop. Every wait in here has a bound.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn

# `Turnwire.asgi()` would load it on the event loop, where its files may not be read.
import turnwire.server.app  # noqa: F401 - loaded for its effect
from turnwire import Settings, Turn, Turnwire
from turnwire.cli.web_server import GuardedProtocol
from turnwire.core.log.events import Event
from turnwire.core.log.follow import follow

# A loaded machine is slow, not wrong.
PATIENCE = 120.0
SEND_BUFFER_BYTES = 128 * 1024


# Agents


class Part:
    """One turn of a puppet."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.over = asyncio.Event()
        self.lines: asyncio.Queue[Event | str | Exception | None] = asyncio.Queue()

    def say(self, *lines: Event | str) -> None:
        for line in lines:
            self.lines.put_nowait(line)

    def end(self, error: Exception | None = None) -> None:
        self.lines.put_nowait(error)


class Puppet:
    """An agent that the test controls: what it says, and when."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._begun: asyncio.Queue[Part] = asyncio.Queue()

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        part = Part(turn)
        self.parts.append(part)
        self._begun.put_nowait(part)
        try:
            while (line := await part.lines.get()) is not None:
                if isinstance(line, Exception):
                    raise line
                yield line
        finally:
            part.over.set()

    async def part(self) -> Part:
        """Return the next turn that begins."""
        return await within(self._begun.get())


def saying(*lines: Event | str) -> Any:
    """Return an agent that says these lines."""

    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        for line in lines:
            yield line

    return answer


# The client


class Frame(NamedTuple):
    """One server-sent event, or a comment."""

    id: str | None = None
    data: str | None = None
    retry: int | None = None
    comment: str | None = None

    @property
    def event(self) -> dict[str, Any]:
        assert self.data is not None
        return json.loads(self.data)

    @property
    def type(self) -> str:
        return self.event["type"]

    @property
    def position(self) -> int:
        assert self.id is not None
        return int(self.id.rpartition(":")[2].partition(".")[0])


class SseParser:
    """Reads server-sent events as the HTML standard says: lines end with CR LF, LF or CR, frames with an empty line."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[str] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        frames: list[Frame] = []
        lines = (self._rest + chunk).splitlines(keepends=True)
        # A CR at the very end may be the first half of a CR LF.
        self._rest = b"" if not lines or lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            if content := line[: -2 if line.endswith(b"\r\n") else -1]:
                self._lines.append(content.decode())
            elif self._lines:
                frames.append(self._frame())
        return frames

    def _frame(self) -> Frame:
        lines, self._lines = self._lines, []
        fields: dict[str, Any] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name or "comment", value.removeprefix(" ")
            assert name in Frame._fields, f"a field nobody knows: {line!r}"
            assert name not in fields, f"{name} twice in one frame"
            fields[name] = int(value) if name == "retry" else value
        return Frame(**fields)


class Stream:
    """An open stream. Iterating over `frames` leaves comments out; `raw` is every byte so far."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.headers = response.headers
        self.turn_id: str = response.headers.get("x-turn-id", "")
        self.session_id: str = response.headers.get("x-session-id", "")
        self.raw = b""
        self.seen: list[Frame] = []
        self._chunks = response.aiter_raw()
        self._parser = SseParser()
        self._ready: list[Frame] = []

    async def next_block(self) -> Frame | None:
        """Return the next frame or comment; None at the end of the stream."""
        while not self._ready:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return None
            self.raw += chunk
            self._ready = self._parser.feed(chunk)
        return self._ready.pop(0)

    async def next(self) -> Frame:
        """Return the next frame that is not a comment."""
        async with asyncio.timeout(PATIENCE):
            while (block := await self.next_block()) is not None:
                if block.data is not None:
                    self.seen.append(block)
                    return block
        raise AssertionError("the stream ended")

    async def until(self, kind: str) -> list[Frame]:
        """Return the next frames, up to the first one of this type."""
        found = [await self.next()]
        while found[-1].type != kind:
            found.append(await self.next())
        return found

    async def rest(self) -> list[Frame]:
        """Return all frames until the server ends the stream."""
        found: list[Frame] = []
        async with asyncio.timeout(PATIENCE):
            while (block := await self.next_block()) is not None:
                if block.data is not None:
                    found.append(block)
        self.seen += found
        return found


class Client:
    """A client of a server. `http` is for every request that has no method here."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2].partition("/")[0])
        self.http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=PATIENCE,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
            verify=False,  # There is nothing to verify, and to prepare for it takes longer than most tests.
        )

    @asynccontextmanager
    async def stream(self, method: str, path: str, **request: Any) -> AsyncIterator[Stream]:
        async with self.http.stream(method, path, **request) as response:
            if response.status_code != 200:
                raise AssertionError(f"{response.status_code}: {(await response.aread()).decode()}")
            yield Stream(response)

    def ask(self, message: str = "Hello", *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """Open POST /chat/stream."""
        return self.stream("POST", "/chat/stream", json={"message": message, **body}, headers=headers)

    def events(self, turn_id: str, after: int | str | None = None, last_id: str | None = None) -> Any:
        """Open GET /v1/turns/{id}/events."""
        return self.stream(
            "GET",
            f"/v1/turns/{turn_id}/events",
            params={} if after is None else {"after": after},
            headers={} if last_id is None else {"Last-Event-ID": last_id},
        )

    async def whole(self, turn_id: str) -> list[Frame]:
        """Return all events of a turn, once it has ended."""
        async with self.events(turn_id) as stream:
            return await stream.rest()

    async def start(self, message: str = "Hello", **body: Any) -> str:
        """Start a turn without reading it, and return its id."""
        async with self.ask(message, **body) as stream:
            return stream.turn_id

    async def snapshot(self, turn_id: str) -> dict[str, Any]:
        return (await self.http.get(f"/v1/turns/{turn_id}")).json()


def error_of(response: httpx.Response, status: int | None = None) -> dict[str, Any]:
    """Return the error of a response, and check its shape."""
    assert response.headers["content-type"] == "application/json", response.text
    body = response.json()
    assert set(body) == {"error"}, body
    assert isinstance(body["error"]["code"], str)
    assert body["error"]["message"]
    expected = range(400, 500) if status is None else (status,)
    assert response.status_code in expected, (response.status_code, body)
    return body["error"]


class RawAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def raw_request(port: int, request: bytes) -> RawAnswer:
    """Send bytes that no client library would send, and read the answer until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            writing = asyncio.create_task(_write_all(writer, request))
            received = b""
            try:
                while chunk := await reader.read(65_536):
                    received += chunk
            except ConnectionError:
                pass  # The server may close before it has read everything; what it said counts.
            await writing
    finally:
        writer.transport.abort()
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawAnswer(int(status.split()[1]), headers, body)


async def _write_all(writer: asyncio.StreamWriter, request: bytes) -> None:
    try:
        writer.write(request)
        await writer.drain()
    except ConnectionError:
        pass


async def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def within(waiting: Any, seconds: float = PATIENCE) -> Any:
    """Wait with a bound."""
    async with asyncio.timeout(seconds):
        return await waiting


# The server


def let_time_pass(turnwire: Turnwire, seconds: float) -> None:
    """Run the checks of every open stream (heartbeat, lifetime, blocked write) as often as in so many seconds."""
    streams = turnwire.streams
    for _ in range(round(seconds / streams.tick)):
        streams.check_all()


class Served(Client):
    """A server in this process, and a client of it."""

    def __init__(self, turnwire: Turnwire, url: str) -> None:
        super().__init__(url)
        self.turnwire = turnwire

    async def reached(self, turn_id: str, position: int) -> None:
        """Wait until a position is committed."""
        async with asyncio.timeout(PATIENCE):
            following = follow(self.turnwire.store, turn_id)
            async for events in following:
                if events[-1].position >= position:
                    break
            await following.aclose()

    async def ended(self, turn_id: str) -> dict[str, Any]:
        """Wait until a turn has ended, and return its snapshot."""
        await self.reached(turn_id, 1_000_000_000)
        return await self.snapshot(turn_id)

    async def written(self, principal: str = "local") -> tuple[int, int]:
        """Return the numbers of sessions and turns."""
        store = self.turnwire.store
        return len(await store.list_sessions(principal, limit=10_000)), len(
            await store.list_turns(principal, limit=10_000)
        )


class OnlyTheseSettings(Settings):
    """Settings that are not looked for anywhere: not in the environment of whoever runs the tests, not in a file."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: Any, init_settings: Any, *others: Any, **named: Any
    ) -> tuple[Any, ...]:
        return (init_settings,)


def quick_settings(folder: Path, *, documents: Mapping[str, Any] | None = None, **settings: Any) -> Settings:
    """Settings for tests: nothing waits long or loads a model, unless a test says otherwise."""
    quick = {"shutdown_grace": 0, "cancel_patience": 1}
    # Documents are read with a low priority, which takes long beside other work.
    section = {"embeddings": "off", "timeout": PATIENCE, **(documents or {})}
    return OnlyTheseSettings(**{"data": folder, **quick, "documents": section, **settings})


async def ready(turnwire: Turnwire) -> None:
    """Wait until the plugins of an open server have read what they read at the start, such as documents."""
    for plugin in turnwire.services.plugins.values():
        await plugin.ready()


@asynccontextmanager
async def serving(
    turnwire: Turnwire, app: Any = None, *, lifespan: str = "on", path: str = ""
) -> AsyncIterator[Served]:
    """Serve on a free port until the block ends. `app` may wrap or mount the app of `turnwire` at `path`."""
    listening = listen()
    config = uvicorn.Config(
        app or turnwire.asgi(),
        http=GuardedProtocol,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="on" if lifespan == "on" else "off",
        log_config=None,
        access_log=False,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Its parts, not `serve()`: that one takes the signals, and sleeps while it ends.
    await server.startup(sockets=[listening])
    served = Served(turnwire, f"http://127.0.0.1:{listening.getsockname()[1]}{path}")
    try:
        yield served
    finally:
        await served.http.aclose()
        for listener in server.servers:
            listener.close()
        await within(server.lifespan.shutdown())
        await within(turnwire.close())
        for connection in tuple(server.server_state.connections):
            connection.shutdown()
        if server.server_state.tasks:
            _, unfinished = await asyncio.wait(server.server_state.tasks, timeout=PATIENCE)
            assert not unfinished


def listen() -> socket.socket:
    """Return a listening socket like that of `turnwire serve`."""
    # By its number: asyncio sends small writes at once only where the protocol of a socket is TCP.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    listening.setblocking(False)
    return listening
