"""Which turn the code that runs now belongs to, for those who write about it: the server's log, say.

A context variable, so that every task and thread that an agent starts knows it too.
"""

from contextvars import ContextVar
from typing import NamedTuple


class Place(NamedTuple):
    turn_id: str
    session_id: str


_place: ContextVar[Place | None] = ContextVar("turnwire_place", default=None)


def enter_turn(turn_id: str, session_id: str) -> None:
    """From here on, in this task and all that it starts."""
    _place.set(Place(turn_id, session_id))


def current_turn() -> Place | None:
    return _place.get()
