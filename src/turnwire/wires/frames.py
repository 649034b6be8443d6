"""The bytes of frames: server-sent events, the base classes of wires, and values that several protocols share.

Lines end with LF alone, a frame has one `data` line, and `data` is one line of ASCII JSON, so no client's line splitter
finds a line break that is not there.
"""

from collections.abc import Container, Mapping
from typing import Any, Self, cast

import msgspec

from turnwire.core.contracts.wires import Control
from turnwire.core.log.codec import ascii_json
from turnwire.core.log.events import Usage

COMMENT_HEARTBEAT = b": hb\n\n"


class StatefulWire:
    """The base of wires whose frames depend on earlier events, and which have no control frames."""

    keeps_state = True
    numbers_frames = False
    heartbeat = COMMENT_HEARTBEAT
    opening = b""

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Return the wire that a query string asks for. Raise ValueError. This one has no options."""
        return cls()

    def control(self, control: Control) -> None:
        """Return None: the connection breaks instead, and the client resumes or reads again."""


class BaseEncoder:
    """The base of encoders that send nothing at a wait, and take a heartbeat after any frame."""

    takes_heartbeat = True

    def pause(self) -> bytes:
        return b""


DONE = b"data: [DONE]\n\n"
"""The last frame of the protocols that have one."""

TOKEN_BODY = b'{"type":"token","content":'
_CONTENT_START = len(TOKEN_BODY)

TURN_FAILED = "The answer could not be completed."
"""The error text of a failed turn whose log has none."""
TOOL_UNFINISHED = "The turn ended before this tool did."
QUESTION_DECLINED = "The question was not answered."


def frame(data: bytes, event_id: bytes | None = None) -> bytes:
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %b\ndata: %b\n\n" % (event_id, data)


def control_frame(kind: str, fields: dict[str, object], retry_ms: int | None = None) -> bytes:
    """Return a frame without an id, because a control message is not an event of the log."""
    data = ascii_json({"type": kind, **fields})
    retry = b"" if retry_ms is None else b"retry: %d\n" % retry_ms
    return retry + frame(data)


def answer_json(body: bytes) -> bytes:
    """Return the text of an answer token as the ASCII JSON string of the log; b"" if it is empty or no answer token.

    Nearly every event is a token, so wires send this string on without decoding it. A sub-agent's token has its path
    after the text and therefore another end.
    """
    content = body[_CONTENT_START:-1]
    return content if body.startswith(TOKEN_BODY) and body.endswith(b'"}') and len(content) > 2 else b""


def answer_text(body: bytes) -> str:
    content = answer_json(body)
    return msgspec.json.decode(content, type=str) if content else ""


def omit_none(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None: a null is fatal to some clients."""
    return {name: value for name, value in fields.items() if value is not None}


def as_object(value: Any) -> dict[str, Any]:
    """Return a value of a client as the JSON object that it is, or else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def text_or_json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def usage_fields(usage: Usage) -> dict[str, int]:
    """Return the token counts under camelCase names. An unknown count is left out: it is not zero."""
    counts = usage.input_tokens, usage.output_tokens
    return omit_none(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=None if None in counts else sum(count or 0 for count in counts),
        cachedInputTokens=usage.cached_input_tokens,
        reasoningTokens=usage.reasoning_tokens,
    )


def known_call_id(shown_id: str, known: Container[str]) -> str | None:
    """Return a call's own id. Clients see a repeated id with the position of the second call appended."""
    return next((name for name in (shown_id, shown_id.rpartition("-")[0]) if name in known), None)
