"""A log as bytes: a line an event, `<epoch> <at> <event as JSON>`. A line's place says its position."""

import zlib
from collections.abc import Sequence
from functools import lru_cache

from turnwire.core.codec import LoggedEvent


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


@lru_cache(maxsize=4)
def unseal(body: bytes) -> list[bytes]:
    """The lines of a sealed log. A log is read page by page, so the last few are remembered."""
    return zlib.decompress(body).split(b"\n")
