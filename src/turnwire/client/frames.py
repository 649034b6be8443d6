"""Frames of the wire `sse_chat`, and a reader's position in them."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, cast

import msgspec
from msgspec import Struct

from turnwire.client.errors import ClientError
from turnwire.client.values import ReceivedEvent
from turnwire.core.contracts.wires import Gap, Reset
from turnwire.core.log.codec import decode_event
from turnwire.core.log.events import DoneEvent, Event, RestartEvent, TokenEvent
from turnwire.core.log.turns import TurnState


class SseFrame(Struct, frozen=True):
    """One server-sent event."""

    data: bytes
    id: str | None = None


async def sse_frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[SseFrame]:
    """Parse server-sent events. Comments, unknown fields and an incomplete last frame are left out."""
    rest = b""
    event_id, data = None, list[bytes]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                event_id = value.decode("latin-1")
            elif name == b"data":
                data.append(value)
            elif not name and not line.strip():
                if data:
                    yield SseFrame(b"\n".join(data), event_id)
                event_id, data = None, []


class FrameReader:
    """The position of a reader in one turn's log, kept across connections, and the text of the answer there."""

    def __init__(self, after: str | None = None) -> None:
        """`after` is the id of the last event that was read before."""
        self.last_event_id = after
        self.position = _position_of(after) if after else 0
        self.is_done = False
        self.retry_seconds: float | None = None
        """The wait before the next connection, if the server has asked its readers to reconnect."""
        self._text: list[tuple[int, str]] = []

    @property
    def text(self) -> str:
        """Return the answer as far as it was read, without the parts that a restart has made void."""
        return "".join(piece for _, piece in self._text)

    def read(self, frame: SseFrame) -> ReceivedEvent | Gap | Reset | None:
        """Return the update in a frame; None if it has none that is new. Raise ClientError if it is not a turn's."""
        try:
            return self._read(frame)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise ClientError(
                "the stream has a frame that is not of a turn; check that this is a Turnwire server",
                code="not_turnwire",
            ) from error

    def _read(self, frame: SseFrame) -> ReceivedEvent | Gap | Reset | None:
        if frame.id is None:
            return self._read_control(msgspec.json.decode(frame.data, type=dict[str, Any]))
        position = _position_of(frame.id)
        if position <= self.position:
            return None
        self.last_event_id, self.position = frame.id, position
        try:
            event = decode_event(frame.data)
        except msgspec.ValidationError:
            return None  # A newer server's event that this client does not know.
        self.is_done = isinstance(event, DoneEvent)
        self._fold(event)
        return ReceivedEvent(event, frame.data, frame.id)

    def _fold(self, event: Event) -> None:
        match event:
            case TokenEvent(content=content, agent_path=()):
                self._text.append((self.position, content))
            case RestartEvent(from_position=kept):
                while self._text and self._text[-1][0] > kept:
                    self._text.pop()
            case _:
                pass

    def _read_control(self, control: dict[str, Any]) -> Gap | Reset | None:
        match control.get("type"):
            case "reset":
                self.last_event_id, self.position, self._text = None, 0, []
                return Reset()
            case "gap":
                first_kept = int(control.get("first_kept", 1))
                if first_kept - 1 <= self.position:
                    return None
                gap = Gap(self.position, first_kept, _state_of(control.get("state")))
                self.position, self._text = first_kept - 1, [(first_kept - 1, gap.state.text)]
                self.last_event_id = str(self.position)
                return gap
            case "reconnect":
                self.retry_seconds = float(control.get("retry_ms", 0)) / 1000
                return None
            case _:
                return None


def _position_of(event_id: str) -> int:
    return int(event_id.partition(".")[0])


def _state_of(value: Any) -> TurnState:
    try:
        return msgspec.convert(value, TurnState)
    except msgspec.ValidationError:
        # A newer server's state: the text is what a reader needs to go on.
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        return TurnState(text=str(fields.get("text", "")))
