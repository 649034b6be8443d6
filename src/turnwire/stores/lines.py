"""The stored formats of logs and states.

A log has one line per event, `<epoch> <at> <event as JSON>`; the number of the line gives the position.
"""

import zlib
from collections.abc import Sequence
from threading import Lock

import msgspec

from turnwire.core.codec import LoggedEvent
from turnwire.core.turns import TurnState

_CACHED_LOGS = 8


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


def unseal(body: bytes) -> list[bytes]:
    """Return the lines of a sealed log."""
    return zlib.decompress(body).split(b"\n")


class SealedLogs:
    """The lines of the sealed logs that were read last: a log is read page by page, but fetched and unsealed once.

    The key is the turn's number and its first kept position, because expiring is all that changes a sealed log. Any
    thread may use it.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], list[bytes]] = {}
        self._lock = Lock()

    def get(self, number: int, first_kept: int) -> list[bytes] | None:
        return self._lines.get((number, first_kept))

    def add(self, number: int, first_kept: int, body: bytes) -> list[bytes]:
        lines = unseal(body)
        with self._lock:
            self._lines[number, first_kept] = lines
            while len(self._lines) > _CACHED_LOGS:
                del self._lines[next(iter(self._lines))]
        return lines


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)
