"""The conversion of rows into records, and of texts into what a database can store and search."""

import json
from collections.abc import Mapping
from typing import Any

from turnwire.core.contracts.stores import Annotation, ApiKey
from turnwire.core.log.turns import Session, TurnRecord
from turnwire.stores.database import Row

# A turn is in `head` until it ends.
RECORD = """
    t.id, t.session_id, t.principal, t.agent, t.message, t.channel, t.external_id, t.parent_turn_id,
    coalesce(h.phase, 'ended') AS phase, t.outcome, coalesce(h.worker, t.worker) AS worker,
    coalesce(h.epoch, t.epoch) AS epoch, coalesce(h.last_position, t.last_position) AS last_position,
    t.first_kept, t.created_at, coalesce(h.started_at, t.started_at) AS started_at, t.ended_at,
    coalesce(h.waiting_until, t.waiting_until) AS waiting_until, t.disconnect_grace, t.options, t.attachments
"""
TURN = "turnwire.turn t LEFT JOIN turnwire.head h ON h.id = t.id"
UNFINISHED = "turnwire.head h JOIN turnwire.turn t ON t.id = h.id"
SESSION = """
    s.id, s.principal, s.created_at, s.updated_at, s.external_id, s.title,
    (SELECT count(*) FROM turnwire.turn t WHERE t.session_id = s.id) AS turn_count
"""
_RECORD_FIELDS = tuple(name for name in TurnRecord.__struct_fields__ if name != "options")


def record_from(row: Row) -> TurnRecord:
    options = json.loads(row["options"])
    if row["attachments"] is not None:
        options["attachments"] = json.loads(row["attachments"])
    return TurnRecord(**{name: row[name] for name in _RECORD_FIELDS}, options=options)


def options_columns(options: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the options of a turn as they are stored: the files of its message apart, because they go when it ends."""
    kept = {name: value for name, value in options.items() if name != "attachments"}
    attachments = options.get("attachments")
    return json.dumps(kept), None if attachments is None else json.dumps(attachments)


def session_from(row: Row) -> Session:
    return Session(**{name: row[name] for name in Session.__struct_fields__})


def annotation_from(row: Row) -> Annotation:
    return Annotation(**{name: row[name] for name in Annotation.__struct_fields__})


def key_from(row: Row) -> ApiKey:
    values: dict[str, Any] = {name: row[name] for name in ApiKey.__struct_fields__ if name != "scopes"}
    return ApiKey(**values, scopes=tuple(row["scopes"].split()))


def comparable(name: str) -> str:
    """Return a name in a form that a database can compare. No stored name has the characters that are replaced."""
    return name.encode(errors="replace").replace(b"\x00", b"\xef\xbf\xbd").decode()


def folded(text: str) -> str:
    """Return a text in the form in which it is searched: ignoring case."""
    return comparable(text.casefold())
