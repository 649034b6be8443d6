"""Events as bytes: one line of ASCII JSON each, cleaned once when they enter the log.

Stores, wires and offsets all see the same text, and a line can be framed without parsing it: it has no raw line break,
no separator that any client's line splitter knows (U+2028, U+0085, 0x1e), no control character and no lone surrogate.
"""

import re
import time
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.errors import EventRefusedError
from turnwire.core.log.events import DoneEvent, Event, EventBase, ToolCallEvent, ToolResultEvent

OPENING_POSITION = 2
"""The position of `message`, the last event that every log begins with."""
SUSPENSION_EVENTS = ("approval_request", "tool_call", "question")
"""The event types that stand together where a turn is suspended: calls, requests for decisions, and questions."""

# The type is the first field of every body, so it can be read without decoding the event.
_TYPE_START = len(b'{"type":"')
_LAST_BODY = b'{"type":"done"'
_TOKEN_BODY = b'{"type":"token"'


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def time_text(ms: int | None) -> str | None:
    """Format a time as the API does: ISO 8601, UTC, to the millisecond."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


class LoggedEvent(Struct, eq=False, gc=False):
    """An event in a log: its position, the epoch of its writer, and the time (in ms) when it was written.

    `body` is the event as a line of ASCII JSON: encoded once, stored as it is, and sent as it is by the wires that
    speak JSON. So a log that is only passed on is never decoded.
    """

    position: int
    epoch: int
    at: int
    body: bytes
    decoded: Event | None = None

    @property
    def event(self) -> Event:
        if self.decoded is None:
            self.decoded = decode_event(self.body)
        return self.decoded

    @property
    def type(self) -> str:
        """Return the event's type without decoding the event."""
        return self.body[_TYPE_START : self.body.index(b'"', _TYPE_START)].decode("ascii")

    @property
    def is_token(self) -> bool:
        return self.body.startswith(_TOKEN_BODY)

    @property
    def agent_path(self) -> tuple[str, ...]:
        return self.event.agent_path

    @property
    def is_last(self) -> bool:
        """Return True for `done`, which ends every log. Followers ask this of every event, so it does not decode."""
        return self.body.startswith(_LAST_BODY)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoggedEvent) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int, bytes]:
        return self.position, self.epoch, self.at, self.body


def begins_wait(logged: LoggedEvent) -> bool:
    """Return True for an event with which a turn begins to wait: for a decision, a reply or a result of the client."""
    if logged.type == "tool_call":
        return isinstance(logged.event, ToolCallEvent) and logged.event.runs_on == "client"
    return logged.type in ("approval_request", "question")


def log_event(event: Event, position: int, epoch: int) -> LoggedEvent:
    """Encode an event for a position in a log. Raises EventRefusedError."""
    event, body = encode_event(event)
    return LoggedEvent(position, epoch, now_ms(), body, event)


def encode_event(event: Event) -> tuple[Event, bytes]:
    """Return the event as the log keeps it, and its line of JSON. Raises EventRefusedError."""
    # Agents are foreign code: a `yield None` must not get into the log.
    if not isinstance(event, EventBase):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EventRefusedError(f"a {type(event).__name__} is not an event; yield a str or an event of turnwire")
    try:
        body = _encoder.encode(event)
    except UnicodeEncodeError:
        return _encode_cleaned(event)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise _not_json(event, error) from error
    if (b"\\" in body or b"\x7f" in body) and _SUSPECT.search(body):
        return _encode_cleaned(event)
    if not body.isascii():
        body = _escape(body)
        if b"\\u008" in body or b"\\u009" in body:
            return _encode_cleaned(event)
    # Decoded at once, so that the log has a copy of its own and holds nothing that cannot be read later.
    try:
        return decode_event(body), body
    except msgspec.ValidationError as error:
        raise EventRefusedError(f"a {type(event).__name__} has a field of the wrong type: {error}") from error


def encode_token(content: str) -> tuple[str, bytes]:
    """Return what `encode_event` makes of a `TokenEvent` with this content; nearly every event is one."""
    if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EventRefusedError(f"a token must be a str, not {type(content).__name__}")
    try:
        body = b'{"type":"token","content":%b}' % json_string(content)
    except UnicodeEncodeError:
        return encode_token(clean_text(content))
    cleaned = clean_text(content)
    if cleaned != content:
        return encode_token(cleaned)
    return content, body if body.isascii() else _escape(body)


def decode_event(body: bytes) -> Event:
    return _decoder.decode(body)


def ascii_json(value: Any) -> bytes:
    """Encode any plain value as one line of ASCII JSON."""
    body = msgspec.json.encode(value, enc_hook=_to_plain)
    return body if body.isascii() else _escape(body)


# Cleaning: tab, line feed and carriage return are text; every other control character is not.

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NON_ASCII = re.compile("[^\x00-\x7f]+")
# Control characters in encoded JSON. The pattern also matches some harmless text, which the slow path sorts out.
_SUSPECT = re.compile(rb"\\u00|\\[bf]|\x7f")


def clean_text(text: str) -> str:
    """Remove control characters and replace lone surrogates."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text))


def _encode_cleaned(event: Event) -> tuple[Event, bytes]:
    try:
        plain = clean_json(msgspec.to_builtins(event, enc_hook=_to_plain))
        body = _escape(msgspec.json.encode(plain))
        return decode_event(body), body
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise _not_json(event, error) from error


def clean_json(value: Any) -> Any:
    """Return a JSON value with its texts as the log keeps them."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_json(key): clean_json(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in cast("list[Any]", value)]
    return value


def comparable(event: Event) -> bytes:
    """Return an event in a form that is the same when the agent yields it again."""
    return encode_event(replace(event, ms=None) if isinstance(event, ToolResultEvent) else event)[1]


def _escape(body: bytes) -> bytes:
    """Escape non-ASCII characters, which occur only inside JSON strings."""
    return _NON_ASCII.sub(lambda run: encode_basestring_ascii(run[0])[1:-1], body.decode()).encode("ascii")


def _to_plain(value: Any) -> Any:
    """Return a JSON value for an object that a tool returned: the dump of a Pydantic model, or else its class name."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump else f"<{type(value).__name__}>"


def _not_json(event: Event, error: Exception) -> EventRefusedError:
    return EventRefusedError(f"a {type(event).__name__} holds a value that JSON cannot represent: {error}")


json_string = msgspec.json.Encoder().encode
_encoder = msgspec.json.Encoder(enc_hook=_to_plain)
_decoder = msgspec.json.Decoder(Event)
assert encode_event(DoneEvent("completed", "", ""))[1].startswith(_LAST_BODY)
