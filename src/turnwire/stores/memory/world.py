"""What the memory store keeps: plain values, and what is found from them."""

from collections import Counter, deque

from msgspec import Struct, field
from msgspec.structs import replace

from turnwire.core.contracts import ApiKey, Command
from turnwire.core.logged import LoggedEvent
from turnwire.core.sessions import Session
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.guards import Head
from turnwire.stores.lineup import Lineup


class Kept(Struct):
    """A turn with its log; `events[0]` is at position `first_kept`."""

    record: TurnRecord
    head: Head
    events: list[LoggedEvent]
    idempotency_key: str | None
    fingerprint: str
    state: TurnState | None = None
    checkpoint: bytes = b""

    def current(self) -> TurnRecord:
        return replace(self.record, last_position=self.head.position)


class World(Struct):
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    turns: dict[str, Kept] = field(default_factory=dict[str, Kept])
    # The rest is found from the turns, kept so that nothing has to be searched for.
    turn_names: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])
    session_names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    session_turns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    unfinished: Counter[str] = field(default_factory=Counter[str])
    lineup: Lineup = field(default_factory=Lineup)
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    ended: deque[str] = field(default_factory=deque[str])
    spent: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    keys: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    outbox: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """When a turn may be told of, and how often that has failed."""
