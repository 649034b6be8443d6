"""The stored formats of logs, journals and states.

A log has one line per event, `<epoch> <at> <event as JSON>`; the number of the line gives the position. A journal has
one line per entry, `<entry as JSON without its result><tab><result as JSON>`.
"""

import zlib
from collections.abc import Sequence
from threading import Lock

import msgspec
from msgspec.structs import replace

from turnwire.core.contracts.stores import JournalEntry, Seal
from turnwire.core.log.codec import LoggedEvent, ascii_json
from turnwire.core.log.turns import TurnState

PAGE_BYTES = 1024 * 1024
"""A page of a log has at most about this many bytes, and at least one event."""
_CACHED_LOGS = 8
_CACHED_BYTES = 32 * 1024 * 1024


def to_lines(events: Sequence[LoggedEvent]) -> bytes:
    return b"\n".join([b"%d %d %b" % (event.epoch, event.at, event.body) for event in events])


def from_lines(lines: Sequence[bytes], first_position: int) -> list[LoggedEvent]:
    events: list[LoggedEvent] = []
    for position, line in enumerate(lines, start=first_position):
        epoch, at, body = line.split(b" ", 2)
        events.append(LoggedEvent(position, int(epoch), int(at), body))
    return events


def page_of(lines: Sequence[bytes], start: int, limit: int) -> Sequence[bytes]:
    """Return the lines of a page: at most `limit`, and not many more bytes than `PAGE_BYTES`."""
    size, end = 0, start
    last = min(len(lines), start + limit)
    while end < last and size < PAGE_BYTES:
        size += len(lines[end])
        end += 1
    return lines[start:end]


def event_page(events: list[LoggedEvent], limit: int) -> list[LoggedEvent]:
    """Return the first events, as many as a page has."""
    size, end = 0, 0
    last = min(len(events), limit)
    while end < last and size < PAGE_BYTES:
        size += len(events[end].body)
        end += 1
    return events if end == len(events) else events[:end]


def to_entry_lines(entries: Sequence[JournalEntry]) -> bytes:
    # The result stays apart: it may have escapes, such as lone surrogates, that only the standard library decodes.
    return b"\n".join([ascii_json(replace(entry, result=b"")) + b"\t" + entry.result for entry in entries])


def from_entry_lines(lines: bytes) -> list[JournalEntry]:
    entries: list[JournalEntry] = []
    for line in lines.split(b"\n") if lines else ():
        head, _, result = line.partition(b"\t")
        entries.append(replace(_entry_decoder.decode(head), result=result))
    return entries


_entry_decoder = msgspec.json.Decoder(JournalEntry)


def seal(lines: bytes) -> bytes:
    return zlib.compress(lines, 3)


def unseal(body: bytes) -> list[bytes]:
    """Return the lines of a sealed log."""
    return zlib.decompress(body).split(b"\n")


def encode_seal(seal: Seal) -> bytes:
    return msgspec.msgpack.encode(seal)


def decode_seal(body: bytes | None) -> Seal | None:
    """Return a stored seal; None for a log that is not sealed yet."""
    return None if body is None else msgspec.msgpack.decode(body, type=Seal)


def without_marks(body: bytes) -> bytes:
    """Return a stored seal without its marks, which say nothing about events that have expired."""
    seal = msgspec.msgpack.decode(body, type=Seal)
    return encode_seal(replace(seal, log_marks=b"", journal_marks=b""))


class SealedLogs:
    """A cache of the sealed logs that were unsealed last: a log is read page by page, but fetched and unsealed once.

    The key is the turn's number and its first kept position, because expiring is all that changes a sealed log. Any
    thread may use it.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], list[bytes]] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._lock = Lock()

    def get(self, number: int, first_kept: int) -> list[bytes] | None:
        return self._lines.get((number, first_kept))

    def add(self, number: int, first_kept: int, body: bytes) -> list[bytes]:
        key, lines = (number, first_kept), unseal(body)
        with self._lock:
            self._lines[key], self._sizes[key] = lines, sum(map(len, lines))
            # The newest one stays, however large it is: its next page is read next.
            while len(self._lines) > _CACHED_LOGS or (
                len(self._lines) > 1 and sum(self._sizes.values()) > _CACHED_BYTES
            ):
                oldest = next(iter(self._lines))
                del self._lines[oldest], self._sizes[oldest]
        return lines


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)
