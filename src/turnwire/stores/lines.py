"""The stored formats of logs, journals and states.

A log has one line per event, `<epoch> <at> <event as JSON>`; the number of the line gives the position. A journal has
one line per entry, `<entry as JSON without its result><tab><result as JSON>`.
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from turnwire.core.codec import LoggedEvent, ascii_json
from turnwire.core.contracts import JournalEntry
from turnwire.core.turns import TurnState


def to_lines(events: Sequence[LoggedEvent]) -> bytes:
    return b"\n".join([b"%d %d %b" % (event.epoch, event.at, event.body) for event in events])


def from_lines(lines: Sequence[bytes], first_position: int) -> list[LoggedEvent]:
    events: list[LoggedEvent] = []
    for position, line in enumerate(lines, start=first_position):
        epoch, at, body = line.split(b" ", 2)
        events.append(LoggedEvent(position, int(epoch), int(at), body))
    return events


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


# A sealed log is read page by page, so the last few are cached.
@lru_cache(maxsize=4)
def unseal(body: bytes) -> list[bytes]:
    """Return the lines of a sealed log."""
    return zlib.decompress(body).split(b"\n")


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)
