"""Server-sent events, byte by byte: how frames, comments and reconnection times are written.

Lines end with LF alone, a frame has one `data` line, and `data` is a line of ASCII JSON, so no
client's line splitter can find a border where there is none.
"""

from turnwire.core.codec import ascii_json

COMMENT_HEARTBEAT = b": hb\n\n"
DONE = b"data: [DONE]\n\n"
"""The last frame of the protocols that have one."""

TOKEN_BODY = b'{"type":"token","content":'
_TOKEN_START = len(TOKEN_BODY)


def answer_piece(token: bytes) -> bytes:
    """The text of a token as the log has it, a JSON string in ASCII; nothing for what is not of the answer.

    A sub-agent's token has its path after the text, and so another end.
    """
    encoded = token[_TOKEN_START:-1]
    return encoded if token.endswith(b'"}') and len(encoded) > 2 else b""


def frame(data: bytes, event_id: bytes | None = None) -> bytes:
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %b\ndata: %b\n\n" % (event_id, data)


def control_frame(kind: str, fields: dict[str, object], retry_ms: int | None = None) -> bytes:
    """A frame without an id: it is told, but it is not an event of the log."""
    data = ascii_json({"type": kind, **fields})
    retry = b"" if retry_ms is None else b"retry: %d\n" % retry_ms
    return retry + frame(data)
