"""The stored formats of logs and states.

A log has one line per event, `<epoch> <at> <event as JSON>`; the number of the line gives the position.
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from turnwire.core.codec import LoggedEvent
from turnwire.core.turns import TurnState


def to_lines(events: Sequence[LoggedEvent]) -> bytes:
    return b"\n".join([b"%d %d %b" % (event.epoch, event.at, event.body) for event in events])


def from_lines(lines: Sequence[bytes], first_position: int) -> list[LoggedEvent]:
    events: list[LoggedEvent] = []
    for position, line in enumerate(lines, start=first_position):
        epoch, at, body = line.split(b" ", 2)
        events.append(LoggedEvent(position, int(epoch), int(at), body))
    return events


def seal(lines: bytes) -> bytes:
    return zlib.compress(lines, 3)


# A sealed log is read page by page, so the last few are cached.
@lru_cache(maxsize=4)
def unseal(body: bytes) -> list[bytes]:
    """Return the lines of a sealed log."""
    return zlib.decompress(body).split(b"\n")


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)
