"""Resume points of any wire: after a position of the log, a frame, or a byte."""

from msgspec.structs import replace

from turnwire.core.contracts.stores import LogReader
from turnwire.core.contracts.wires import Wire
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.messages import Cursor
from turnwire.server.streams.resume import (
    BYTES,
    FRAMES,
    ResumePoint,
    find_cursor,
    find_point,
    is_in_log,
    is_void,
    void_of,
)


async def find_resume_point(
    store: LogReader, record: TurnRecord, wire: Wire, cursor: Cursor, *, offset: int | None, by_frame: bool
) -> ResumePoint | None:
    """Return where a client continues: after a byte, a frame or a position; None for one that has nothing yet.

    Raises HttpError 409, 410, 416.
    """
    if not wire.keeps_state:
        return await find_position(store, record, wire, cursor)
    if by_frame:
        return await find_point(store, record.id, wire, FRAMES, cursor.position)
    if offset:
        return await find_point(store, record.id, wire, BYTES, offset)
    return await _find_text_position(store, record, cursor) if cursor.position else None


async def find_position(store: LogReader, record: TurnRecord, wire: Wire, cursor: Cursor) -> ResumePoint:
    """Return the point after a position, on a wire that keeps no state."""
    point = await find_cursor(store, record, cursor)
    waits = point.control is None and not point.is_end and cursor.position == record.last_position
    return replace(point, rest=wire.opening) if waits else point


async def _find_text_position(store: LogReader, record: TurnRecord, cursor: Cursor) -> ResumePoint:
    """Return the point after a position of a wire that has no control frames, so that errors are raised instead."""
    if not await is_in_log(store, record, cursor):
        raise not_in_log()
    if record.phase == "ended" and cursor.position == record.last_position:
        return ResumePoint(cursor.position, is_end=True)
    void = await void_of(store, record.id)
    if is_void(tuple(span[:-1] for span in void), cursor.position):
        raise not_in_log()
    return ResumePoint(cursor.position, void=void)


def not_in_log() -> HttpError:
    return HttpError(409, "reset", "after is not a position of this log; read again from after=0")
