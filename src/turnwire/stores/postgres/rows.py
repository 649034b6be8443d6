"""Rows into records and events, and texts into what the database can keep."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from turnwire.core.logged import LoggedEvent
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.lines import from_lines

# A turn has a head until it ends; then what the head said is in the turn itself.
RECORD = """
    t.id, t.session_id, t.principal, t.agent, t.message, t.channel, t.external_id, t.parent_turn_id,
    coalesce(h.phase, 'ended') AS phase, t.outcome, coalesce(h.worker, t.worker) AS worker,
    coalesce(h.epoch, t.epoch) AS epoch, coalesce(h.last_position, t.last_position) AS last_position,
    t.first_kept, t.created_at, coalesce(h.started_at, t.started_at) AS started_at, t.ended_at,
    coalesce(h.waiting_until, t.waiting_until) AS waiting_until, t.disconnect_grace, t.options, t.attachments
"""
TURN = "turnwire.turn t LEFT JOIN turnwire.head h ON h.id = t.id"
UNFINISHED = "turnwire.head h JOIN turnwire.turn t ON t.id = h.id"
_FIELDS = tuple(name for name in TurnRecord.__struct_fields__ if name != "options")


def record_from(row: Mapping[str, Any]) -> TurnRecord:
    options = json.loads(row["options"])
    if row["attachments"] is not None:
        options["attachments"] = json.loads(row["attachments"])
    return TurnRecord(**{name: row[name] for name in _FIELDS}, options=options)


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)


def events_from(rows: Sequence[tuple[int, bytes]], after: int) -> list[LoggedEvent]:
    """The events of some rows (first position, body), from a position on: the first row may begin before it."""
    events: list[LoggedEvent] = []
    for first_position, body in rows:
        events += from_lines(body.split(b"\n"), first_position)
    return events[after + 1 - events[0].position :] if events else []


def comparable(given: str) -> str:
    """A name that somebody asks for, in a form that the database can compare. None of ours holds what is replaced."""
    return given.encode(errors="replace").replace(b"\x00", b"\xef\xbf\xbd").decode()


def folded(text: str) -> str:
    """A text as it is searched: what differs in case only is the same."""
    return comparable(text.casefold())
