"""An event at its place in a log."""

import time

from msgspec import Struct

from turnwire.core.encoding import decode_event, encode_event
from turnwire.core.events import DoneEvent, Event


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
    def agent_path(self) -> tuple[str, ...]:
        return self.event.agent_path

    @property
    def is_last(self) -> bool:
        # A log ends with `done` and only with it. This is asked of every event, so it does not decode.
        return self.body.startswith(LAST_BODY)

    @property
    def asks(self) -> bool:
        """Whether this is a request for a person's approval."""
        return self.body.startswith(_ASKING_BODY)

    @property
    def parks(self) -> bool:
        """Whether this can stand among the requests that a turn is parked with: between them are the calls."""
        return self.body.startswith(_PARKING_BODIES)

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


_ASKING_BODY = b'{"type":"approval_request"'
_PARKING_BODIES = (_ASKING_BODY, b'{"type":"tool_call"')
TOKEN_BODY = b'{"type":"token"'
LAST_BODY = b'{"type":"done"'
assert encode_event(DoneEvent("completed", "", ""))[1].startswith(LAST_BODY)
