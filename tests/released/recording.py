"""A server in this process, a client that keeps every byte, and the golden files that these are compared with."""

import asyncio
import difflib
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.released.scenes import PATIENCE, Stage
from turnwire import Settings, Turnwire

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "UPDATE_GOLDEN"
"""The environment variable that has the golden files written, in place of compared, when it is set."""
UPDATING = bool(os.environ.get(UPDATE))


# Golden files


def compare(name: str, text: str) -> None:
    """Fails with a unified diff if the text is not that of the golden file."""
    path, text = GOLDEN / name, text.rstrip("\n") + "\n"
    if UPDATING:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return
    released = path.read_bytes().decode() if path.exists() else ""
    if released != text:
        diff = difflib.unified_diff(
            released.split("\n"), text.split("\n"), f"released/{name}", f"now/{name}", "", "", 2
        )
        lines = [line if len(line) < 2_000 else line[:2_000] + " …" for line in list(diff)[:400]]
        detail = "\n".join(lines)
        raise AssertionError(f"{name} has changed; if it must, run with {UPDATE}=1 and say so in CHANGELOG\n{detail}")


def pretty(value: Any) -> str:
    """JSON with the order of its keys kept."""
    return json.dumps(value, indent=1, ensure_ascii=True)


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits for something that nobody announces."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


# Values that differ from run to run

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
_CHANGING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)"), "<time>"),
    (re.compile(r"(?<![\w.-])1[789]\d{8}(?:\d{3})?(?:\.\d+)?(?![\w.-])"), "<time>"),
    (re.compile(r'("(?!model_ms)\w+_ms"): ?[\d.]+'), r"\1:<ms>"),
    # The size of a stream, which has times in it.
    (re.compile(r"bytes \*/\d+"), "bytes */<size>"),
    (re.compile(r'"size": \d+'), '"size": "<size>"'),
    (re.compile(r"\btw_[A-Za-z0-9]+_[\w-]+"), "<key>"),
    (re.compile(r"(?i)(set-cookie: [\w-]+=)[^;]+"), r"\1<cookie>"),
    (re.compile(r"\bturnwire_\d+="), "turnwire_<port>="),
    (re.compile(r'retry: \d+(?=\ndata: \{"type":"reconnect")'), "retry: <ms>"),
    (re.compile(r'("address": ")[^"]*:\d+"'), r'\1<worker>"'),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
)
_WORDED = re.compile(r'"(errorText|message|problem|error)":(\s?)"((?:[^"\\]|\\.)*)"')


def steady(text: str, own_texts: Sequence[str] = ()) -> str:
    """The text with ids and times by their order of appearance, and the wording of messages left out.

    `own_texts` are the words of the test itself, which stay.
    """
    numbers: dict[str, int] = {}
    text = _ID.sub(lambda found: f"<id-{numbers.setdefault(found[0], len(numbers) + 1)}>", text)
    for pattern, replacement in _CHANGING:
        text = pattern.sub(replacement, text)

    def worded(found: re.Match[str]) -> str:
        try:
            words = json.loads(f'"{found[3]}"')
        except ValueError:
            words = found[3]
        return found[0] if words in own_texts else f'"{found[1]}":{found[2]}"<text>"'

    return _WORDED.sub(worded, text)


def visible(body: bytes) -> str:
    """The bytes as text in which every control character but the line feed can be seen."""
    text = body.decode("utf-8", "backslashreplace").replace("\\\n", "\\\\\n")
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"«{ord(found[0]):02x}»", text)


# The server

BROKEN_OFF = b"<the server broke off>"
_FRAMEWORK_HEADERS = frozenset({"date", "server", "content-length", "transfer-encoding"})


class _QuietServer(uvicorn.Server):
    def capture_signals(self) -> Any:
        return nullcontext()


class Recorder:
    """A client of one server. What it returns is text with the status, our headers and the body."""

    def __init__(self, url: str, stage: Stage) -> None:
        self.url = url
        self.stage = stage
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, verify=False)
        self.last: httpx.Response | None = None
        self.body = b""

    async def send(
        self, method: str, path: str, *, until: Callable[[bytes], bool] | None = None, **request: Any
    ) -> str:
        """One request with its whole answer; a stream without an end is left when `until` holds."""
        self.stage.received.clear()
        response = None
        try:
            async with asyncio.timeout(PATIENCE), self.http.stream(method, path, **request) as response:
                async for chunk in response.aiter_raw():
                    self.stage.received += chunk
                    if until is not None and until(bytes(self.stage.received)):
                        break
        except httpx.RemoteProtocolError:
            self.stage.received += BROKEN_OFF
            if response is None:
                return f"-\n\n{BROKEN_OFF.decode()}"
        self.last, self.body = response, bytes(self.stage.received)
        return self.head() + self.text()

    def head(self) -> str:
        assert self.last is not None
        own = sorted((name, value) for name, value in self.last.headers.items() if name not in _FRAMEWORK_HEADERS)
        return f"{self.last.status_code}\n" + "".join(f"{name}: {value}\n" for name, value in own) + "\n"

    def text(self) -> str:
        assert self.last is not None
        if self.last.headers.get("content-type", "").partition(";")[0] == "application/json" and self.body:
            return pretty(json.loads(self.body))
        return visible(self.body)

    async def json(self, path: str, method: str = "GET", **request: Any) -> Any:
        response = await self.http.request(method, path, **request)
        return response.json()

    async def phase(self, turn_id: str, *phases: str) -> dict[str, Any]:
        """The snapshot of a turn, once it is in one of these phases."""
        found: dict[str, Any] = {}

        async def is_there() -> bool:
            found.update(await self.json(f"/v1/turns/{turn_id}"))
            return found.get("phase") in phases

        await until(is_there)
        return found


def fixed_settings(folder: Path, **settings: Any) -> Settings:
    """Settings with which nothing depends on the time a test takes."""
    quiet = {
        "heartbeat": 600,
        "text_start_timeout": 600,
        "stream_lifetime": 6_000,
        "write_timeout": 600,
        "document_timeout": 600,
    }
    return Settings(**{"data": folder, "shutdown_grace": 0, "embeddings": "off", **quiet, **settings})


@asynccontextmanager
async def served(turnwire: Turnwire, stage: Stage | None = None) -> AsyncIterator[Recorder]:
    """Serves on a free port until the block ends."""
    # By its number: asyncio sends small writes at once only where the protocol of a socket is TCP.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.setblocking(False)
    config = uvicorn.Config(
        turnwire.asgi(),
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = _QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    recorder = Recorder(f"http://127.0.0.1:{listening.getsockname()[1]}", stage or Stage())
    try:
        await until(lambda: server.started or serving.done())
        assert server.started
        yield recorder
    finally:
        await recorder.http.aclose()
        await turnwire.close()
        server.should_exit = True
        async with asyncio.timeout(PATIENCE):
            await serving
