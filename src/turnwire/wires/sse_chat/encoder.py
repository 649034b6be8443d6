"""`sse_chat`: the log itself, one server-sent event per event.

A client that knows only `session`, `token`, `done`, and one that knows only `tool_call`, `tool_result`, `response`,
`error`, `done`, read the same stream and ignore the rest. The id is `<position>.<epoch>`, opaque to clients.
"""

from collections.abc import Mapping
from typing import Self, assert_never

from turnwire.core.contracts.wires import Control, Encoder, Gap, Reconnect, Reset
from turnwire.core.log.codec import LoggedEvent
from turnwire.wires.frames import COMMENT_HEARTBEAT, BaseEncoder, control_frame


class SseChat:
    name = key = "sse_chat"
    media_type = "text/event-stream; charset=utf-8"
    keeps_state = numbers_frames = False
    heartbeat = COMMENT_HEARTBEAT
    opening = b": stream open\n\n"

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Return the wire that a query string asks for, which has no options for this one."""
        return cls()

    def encoder(self) -> Encoder:
        return _SseEncoder()

    def session_encoder(self, turn_id: str) -> Encoder:
        """Return an encoder for a stream of several turns, whose ids name the turn as well as the position."""
        return _SessionEncoder(turn_id)

    def control(self, control: Control) -> bytes:
        match control:
            case Gap(after=after, first_kept=first_kept, state=state):
                return control_frame("gap", {"after": after, "first_kept": first_kept, "state": state})
            case Reset():
                return control_frame("reset", {})
            case Reconnect(retry_ms=retry_ms):
                return control_frame("reconnect", {"retry_ms": retry_ms}, retry_ms)
            case _:
                assert_never(control)


class _SseEncoder(BaseEncoder):
    def frame(self, logged: LoggedEvent) -> bytes:
        # Every token passes here, so the stored line is framed without decoding it.
        return b"id: %d.%d\ndata: %b\n\n" % (logged.position, logged.epoch, logged.body)


class _SessionEncoder(BaseEncoder):
    def __init__(self, turn_id: str) -> None:
        self._turn_id = turn_id.encode("ascii")

    def frame(self, logged: LoggedEvent) -> bytes:
        return b"id: %b:%d\ndata: %b\n\n" % (self._turn_id, logged.position, logged.body)
