"""Every error this library raises on purpose.

TurnwireError
├── AgentError               the agent failed, in words its user may read
├── BadCursorError           a position to resume from could not be read
├── EventRefusedError        an event that the log does not take
│   ├── EventTooLargeError   one event is over the size limit
│   └── TooManyEventsError   the turn is over its number of events
├── EventsGoneError          retention has removed the events asked for
├── IdempotencyConflictError the same key came with another request
├── LimitError               the caller has too much under way
│   ├── TooManyTurnsError    ... turns running or queued
│   └── TooManyStreamsError  ... streams open
├── NotFoundError            nothing of the caller's has that id
│   ├── AgentNotFoundError
│   ├── KeyNotFoundError
│   ├── SessionNotFoundError
│   └── TurnNotFoundError
├── SessionBusyError         the session runs a turn already, or its queue is full
├── SessionExistsError       somebody else has just made a session of that name
├── ShuttingDownError        the server takes no new turns
├── StoreError               the log could not be read or written
│   ├── FencedError          another worker has taken this turn over
│   ├── PositionError        an event does not follow the last one
│   ├── StoreFullError       the disk is full
│   └── StoreUnusableError   the store cannot be opened, and why
└── TurnEndedError           an event arrived after the turn's last one

`code` goes to clients and keeps its meaning for ever.
"""


class TurnwireError(Exception):
    code = "turnwire_error"


class AgentError(TurnwireError):
    """Raised by an agent to say, in words that are safe to show, why it could not answer."""

    def __init__(self, message: str, *, code: str = "agent_failed", retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class BadCursorError(TurnwireError):
    code = "bad_cursor"

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} is not a position in this log; send the last id you received, or none")
        self.field = field


class EventRefusedError(TurnwireError):
    code = "event_refused"


class EventTooLargeError(EventRefusedError):
    code = "event_too_large"

    def __init__(self, event_type: str, size: int, limit: int) -> None:
        super().__init__(f"a {event_type!r} event of {size:,} bytes is over the limit of {limit:,}")
        self.size = size
        self.limit = limit


class TooManyEventsError(EventRefusedError):
    code = "too_many_events"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the turn wrote more than {limit:,} events, the limit for one turn")
        self.limit = limit


class EventsGoneError(TurnwireError):
    code = "events_gone"

    def __init__(self, turn_id: str, after: int, first_kept: int) -> None:
        super().__init__(
            f"events {after + 1} to {first_kept - 1} of turn {turn_id!r} are past their retention; "
            f"read its snapshot, or from after={first_kept - 1}"
        )
        self.turn_id = turn_id
        self.after = after
        self.first_kept = first_kept


class IdempotencyConflictError(TurnwireError):
    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} was used for another request; use a new key or turn_id for a new message")
        self.key = key


class LimitError(TurnwireError):
    code = "limit"
    retry_after_seconds = 2


class TooManyTurnsError(LimitError):
    code = "too_many_turns"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} turns are under way already, the limit for one principal; wait for one to end")


class TooManyStreamsError(LimitError):
    code = "too_many_streams"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} streams are open already, the limit for one principal; close one")


class NotFoundError(TurnwireError):
    code = "not_found"
    noun = "object"

    def __init__(self, wanted: str) -> None:
        super().__init__(f"no {self.noun} has the id {wanted!r}")
        self.wanted = wanted


class AgentNotFoundError(NotFoundError):
    code = "agent_not_found"
    noun = "agent"


class KeyNotFoundError(NotFoundError):
    code = "key_not_found"
    noun = "API key"


class SessionNotFoundError(NotFoundError):
    code = "session_not_found"
    noun = "session"


class TurnNotFoundError(NotFoundError):
    code = "turn_not_found"
    noun = "turn"


class SessionBusyError(TurnwireError):
    code = "session_busy"

    def __init__(self, session_id: str, unfinished: int) -> None:
        super().__init__(
            f"session {session_id!r} has {unfinished} unfinished turn(s); wait, cancel, or send on_busy=interrupt"
        )
        self.session_id = session_id


class SessionExistsError(TurnwireError):
    code = "session_exists"

    def __init__(self, external_id: str) -> None:
        super().__init__(f"there is a session {external_id!r} already; use it")
        self.external_id = external_id


class ShuttingDownError(TurnwireError):
    code = "shutting_down"
    retry_after_seconds = 2

    def __init__(self) -> None:
        super().__init__("the server is shutting down and takes no new turns; try again in a moment")


class StoreError(TurnwireError):
    code = "store_failed"


class FencedError(StoreError):
    code = "fenced"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id!r} has been taken over by another worker")
        self.turn_id = turn_id


class PositionError(StoreError):
    code = "position_taken"

    def __init__(self, turn_id: str, expected: int, position: int) -> None:
        super().__init__(f"turn {turn_id!r} continues at position {expected}, not {position}")
        self.turn_id = turn_id


class StoreFullError(StoreError):
    code = "disk_full"

    def __init__(self) -> None:
        super().__init__("the server's disk is full; nothing new can be recorded until there is room")


class StoreUnusableError(StoreError):
    code = "store_unusable"

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"cannot use {place}: {why}")


class TurnEndedError(TurnwireError):
    code = "turn_ended"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id!r} has ended; start a new one")
        self.turn_id = turn_id
