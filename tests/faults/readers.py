"""Readers on every wire, which reconnect to other servers and record what they receive."""

import asyncio
import json
import re
import time
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

BROKEN = (httpx.HTTPError, WebSocketException, ConnectionError, EOFError, OSError, TimeoutError)
AWAY = (408, 425, 429, 500, 502, 503, 504, 507)
# The recorded bytes of a text stream whose turn failed before the first byte.
FAILED = b"failed"
_ENDS_OF_TASKS = tuple(f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED"))


class Reader:
    """A reader of one turn. `frames` or `raw` is what it has received; `is_whole` is set at the end."""

    wire = "sse_chat"
    resumes = True
    ends_at_waits = False
    """Whether an answer on this wire ends when the turn waits for a person."""
    has_restarts = True
    """Whether this wire has the events that a restart made void, and the restart."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.is_whole = False
        self.connections = 0
        self.resets = 0
        self.ended_at = 0.0
        self.forget()

    def forget(self) -> None:
        self.frames: list[tuple[str, dict[str, Any]]] = []
        self.raw = b""

    async def read(self, url: str, http: httpx.AsyncClient) -> None:
        """Read on over one connection. Raise the errors of a broken connection."""
        self.connections += 1
        if not self.resumes:
            self.forget()
        headers = {"Last-Event-ID": self.frames[-1][0]} if self.frames else {}
        path = f"{url}/v1/turns/{self.turn_id}/events"
        async with http.stream("GET", path, params={"wire": self.wire}, headers=headers) as response:
            if response.status_code in (409, 410, 416):
                self.forget()  # The log was replaced.
                self.resets += 1
                return
            if response.status_code == 204:
                self._end()
                return
            _check(response)
            await self._read_frames(response)

    async def _read_frames(self, response: httpx.Response) -> None:
        rest = b""
        async for chunk in response.aiter_raw():
            *blocks, rest = (rest + chunk).split(b"\n\n")
            for block in blocks:
                lines = (line.partition(b": ") for line in block.split(b"\n"))
                fields = {name: value.decode() for name, _, value in lines}
                if b"data" in fields:
                    self._add_frame(fields.get(b"id", ""), fields[b"data"])

    def _add_frame(self, frame_id: str, data: str) -> None:
        event = json.loads(data)
        if not frame_id:
            if event["type"] == "reset":
                self.forget()
                self.resets += 1
            return
        self.frames.append((frame_id, event))
        if event["type"] == "done":
            self._end()

    def _end(self) -> None:
        self.is_whole = True
        self.ended_at = time.monotonic()


class RunReader(Reader):
    """A reader on a wire whose runs end at waits, so that only the end of a run that ends the response is the end."""

    ends_at_waits = True
    has_restarts = False

    async def read(self, url: str, http: httpx.AsyncClient) -> None:
        await super().read(url, http)
        if self.frames and self._ends_run(self.frames[-1][1]):
            self._end()

    def _ends_run(self, event: dict[str, Any]) -> bool:
        raise NotImplementedError


class AgUiReader(RunReader):
    wire = "ag_ui"

    def _add_frame(self, frame_id: str, data: str) -> None:
        self.frames.append((frame_id or (self.frames[-1][0] if self.frames else ""), json.loads(data)))

    def _ends_run(self, event: dict[str, Any]) -> bool:
        return event["type"] in ("RUN_FINISHED", "RUN_ERROR")


class A2aReader(RunReader):
    wire = "a2a"

    def _add_frame(self, frame_id: str, data: str) -> None:
        self.frames.append((frame_id, json.loads(data)))

    def _ends_run(self, event: dict[str, Any]) -> bool:
        return event.get("statusUpdate", {}).get("status", {}).get("state", "") in _ENDS_OF_TASKS


class TextReader(Reader):
    wire = "three_phase_text"
    ends_at_waits = True
    has_restarts = False

    async def read(self, url: str, http: httpx.AsyncClient) -> None:
        """Read on at an offset that does not count the empty lines of heartbeats."""
        self.connections += 1
        params: dict[str, Any] = {"wire": self.wire}
        if self.raw:
            params["offset"] = len(self.raw)
        async with http.stream("GET", f"{url}/v1/turns/{self.turn_id}/events", params=params) as response:
            if response.status_code in (409, 410, 416):
                self.forget()
                self.resets += 1
                return
            if response.status_code == 500:  # The turn failed before the first byte.
                if "turn_id" in (await response.aread()).decode():
                    self.raw = FAILED
                    self._end()
                return
            if response.status_code != 204:
                _check(response)
                async for chunk in response.aiter_raw():
                    self.raw = without_heartbeats(self.raw + chunk)
        self._end()


class FullReader(Reader):
    """A reader of a wire without resume: it reads the whole turn again after each break.

    A turn that waited for a person has a `[DONE]` for each wait, so only one at the end of the response is the end.
    """

    resumes = False
    ends_at_waits = True
    has_restarts = False

    async def read(self, url: str, http: httpx.AsyncClient) -> None:
        self._is_done = False
        await super().read(url, http)
        if self._is_done:
            self._end()

    def _add_frame(self, frame_id: str, data: str) -> None:
        self._is_done = data == "[DONE]"
        if not self._is_done:
            self.frames.append((frame_id, json.loads(data)))


class AiSdkReader(FullReader):
    wire = "ai_sdk"


class OpenAIChatReader(FullReader):
    """A reader of Chat Completions, whose error frame replaces `[DONE]`."""

    wire = "openai_chat"

    def _add_frame(self, frame_id: str, data: str) -> None:
        super()._add_frame(frame_id, data)
        self._is_done = self._is_done or "error" in self.frames[-1][1]


class OpenAIResponsesReader(FullReader):
    """A reader of Responses. A turn that waited has several, of which this route has the first."""

    wire = "openai_responses"


class SocketReader(Reader):
    wire = "websocket"

    async def read(self, url: str, http: httpx.AsyncClient) -> None:
        self.connections += 1
        key = http.headers["Authorization"]
        address = f"ws{url.removeprefix('http')}/v1/ws"
        async with connect(
            address, additional_headers={"Authorization": key}, open_timeout=5, ping_interval=None
        ) as ws:
            follow: dict[str, Any] = {"type": "follow", "id": "f", "turn_id": self.turn_id}
            if self.frames:
                follow["after"], follow["epoch"] = map(int, self.frames[-1][0].split("."))
            await ws.send(json.dumps(follow))
            while not self.is_whole:
                message = json.loads(await asyncio.wait_for(ws.recv(), 5))
                if message["type"] == "event":
                    self.frames.append((f"{message['position']}.{message['epoch']}", message["event"]))
                    if message["event"]["type"] == "done":
                        self._end()
                elif message["type"] == "reset":
                    self.forget()
                    self.resets += 1
                elif message["type"] in ("error", "reconnect"):
                    return


WIRES: tuple[type[Reader], ...] = (
    Reader,
    Reader,
    SocketReader,
    TextReader,
    AgUiReader,
    A2aReader,
    AiSdkReader,
    OpenAIChatReader,
    OpenAIResponsesReader,
)


def without_heartbeats(raw: bytes) -> bytes:
    lines, mark, answer = raw.partition(b"\x1d")
    return re.sub(rb"\n+", b"\n", lines).lstrip(b"\n") + mark + answer


def _check(response: httpx.Response) -> None:
    if response.status_code in AWAY:
        raise httpx.ReadError(f"unavailable: {response.status_code}")
    if response.status_code != 200:
        raise AssertionError(f"{response.status_code} from {response.request.url}")
