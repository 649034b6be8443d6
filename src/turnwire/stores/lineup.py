"""Whose turn it is: for the stores that decide in this process."""

from heapq import nsmallest

from msgspec import Struct, field


class Lineup(Struct):
    """The unfinished turns of each session, in the order they were accepted. The first of a session may run."""

    _sessions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _queued: set[str] = field(default_factory=set[str])
    _ready: set[str] = field(default_factory=set[str])

    def add(self, session_id: str, turn_id: str, *, queued: bool = True) -> bool:
        """True if it may run at once."""
        self._sessions.setdefault(session_id, []).append(turn_id)
        return queued and self.queue(session_id, turn_id)

    def queue(self, session_id: str, turn_id: str) -> bool:
        """It waits to be run, for the first time or again. True if it may at once."""
        self._queued.add(turn_id)
        return self._look_at_first(session_id)

    def take(self, turn_id: str) -> None:
        """It does not wait to be run any more."""
        self._queued.discard(turn_id)
        self._ready.discard(turn_id)

    def end(self, session_id: str, turn_id: str) -> bool:
        """True if another turn of the session may run now."""
        self.take(turn_id)
        turns = self._sessions[session_id]
        turns.remove(turn_id)
        if not turns:
            del self._sessions[session_id]
            return False
        return self._look_at_first(session_id)

    def _look_at_first(self, session_id: str) -> bool:
        first = self._sessions[session_id][0]
        if first not in self._queued:
            return False
        self._ready.add(first)
        return True

    def ready(self, limit: int) -> list[str]:
        """Those that may run, oldest first: their ids grow with time."""
        return nsmallest(limit, self._ready)

    def unfinished(self, session_id: str) -> list[str]:
        return list(self._sessions.get(session_id, ()))
