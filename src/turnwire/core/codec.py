"""Events as bytes: one line of ASCII JSON each, cleaned once at the log's entrance.

Everything below the entrance (stores, wires, offsets) sees the same text, and a line can be
framed without looking into it: it has no raw line break, no separator that any client's line
splitter knows (U+2028, U+0085, 0x1e), no control character, and no lone surrogate.
"""

import re
import time
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Any, cast

import msgspec
from msgspec import Struct

from turnwire.core.errors import EventRefusedError
from turnwire.core.events import DoneEvent, Event, EventBase

# Tab, line feed and carriage return are text; every other control character is not.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NON_ASCII = re.compile("[^\x00-\x7f]+")
# How control characters look in encoded JSON. It also matches some harmless text; the slow path sorts that out.
_SUSPECT = re.compile(rb"\\u00|\\[bf]|\x7f")


def clean_text(text: str) -> str:
    """Takes out control characters and replaces lone surrogates."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text))


def encode_event(event: Event) -> tuple[Event, bytes]:
    """Returns the event as the log keeps it, and its line of JSON. Raises EventRefusedError."""
    # Agents are not ours: a `yield None` must not get into the log.
    if not isinstance(event, EventBase):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EventRefusedError(f"a {type(event).__name__} is not an event")
    try:
        body = _encoder.encode(event)
    except UnicodeEncodeError:
        return _encode_cleaned(event)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise EventRefusedError(f"a {type(event).__name__} holds what JSON cannot: {error}") from error
    if (b"\\" in body or b"\x7f" in body) and _SUSPECT.search(body):
        return _encode_cleaned(event)
    if not body.isascii():
        body = _escape(body)
        if b"\\u008" in body or b"\\u009" in body:
            return _encode_cleaned(event)
    # Read back at once: the log keeps a copy of its own, and nothing that nobody could read later.
    try:
        return decode_event(body), body
    except msgspec.ValidationError as error:
        raise EventRefusedError(f"a {type(event).__name__} is not as declared: {error}") from error


def encode_token(content: str) -> tuple[str, bytes]:
    """What `encode_event` makes of a `TokenEvent` with this content. Nearly every event is one."""
    if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise EventRefusedError(f"a token is text, not {type(content).__name__}")
    try:
        body = b'{"type":"token","content":%b}' % json_string(content)
    except UnicodeEncodeError:
        return encode_token(clean_text(content))
    cleaned = clean_text(content)
    if cleaned != content:
        return encode_token(cleaned)
    return content, body if body.isascii() else _escape(body)


def ascii_json(value: Any) -> bytes:
    """Any plain value as one line of ASCII JSON."""
    body = msgspec.json.encode(value, enc_hook=_plain)
    return body if body.isascii() else _escape(body)


def decode_event(body: bytes) -> Event:
    return _decoder.decode(body)


def _encode_cleaned(event: Event) -> tuple[Event, bytes]:
    try:
        plain = _clean(msgspec.to_builtins(event, enc_hook=_plain))
        body = _escape(msgspec.json.encode(plain))
        return decode_event(body), body
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise EventRefusedError(f"a {type(event).__name__} holds what JSON cannot: {error}") from error


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in cast("list[Any]", value)]
    return value


def _escape(body: bytes) -> bytes:
    """Non-ASCII characters stand only inside JSON strings, so each can be escaped where it stands."""
    return _NON_ASCII.sub(_escape_run, body.decode()).encode("ascii")


def _escape_run(run: re.Match[str]) -> str:
    return encode_basestring_ascii(run[0])[1:-1]


def _plain(value: Any) -> Any:
    """What a tool hands over need not be JSON; a pydantic model is, anything else is only named."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump else f"<{type(value).__name__}>"


_encoder = msgspec.json.Encoder(enc_hook=_plain)
json_string = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Event)


# An event at its place in a log.


class LoggedEvent(Struct, eq=False, gc=False):
    """An event, its position in its turn's log, the epoch of its writer, and when (in ms) it was written.

    `body` is the event as a line of ASCII JSON: encoded once, stored as it is, sent as it is by the
    wires that speak JSON. A log that is only passed on is therefore never decoded.
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
        """Return the event's type without decoding the event: the type is always the first field of the body."""
        return self.body[_TYPE_START : self.body.index(b'"', _TYPE_START)].decode("ascii")

    @property
    def agent_path(self) -> tuple[str, ...]:
        return self.event.agent_path

    @property
    def is_last(self) -> bool:
        # A log ends with `done` and only with it. This is asked of every event, so it does not decode.
        return self.body.startswith(LAST_BODY)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoggedEvent) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int, bytes]:
        return self.position, self.epoch, self.at, self.body


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def log_event(event: Event, position: int, epoch: int) -> LoggedEvent:
    event, body = encode_event(event)
    return LoggedEvent(position, epoch, now_ms(), body, event)


_TYPE_START = len(b'{"type":"')
SUSPENSION_EVENTS = ("approval_request", "tool_call")
"""The event types that stand together where a turn is suspended for a person: the calls and the requests for them."""
TOKEN_BODY = b'{"type":"token"'
LAST_BODY = b'{"type":"done"'
assert encode_event(DoneEvent("completed", "", ""))[1].startswith(LAST_BODY)


# Times as the API tells them: ISO 8601, UTC, to the millisecond.


def time_text(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
