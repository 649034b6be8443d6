"""What an agent, a store and a wire promise. Implementations are elsewhere; these are all there is to know.

Imported by everyone, imports nobody but the plain values. A backend that cannot keep a
promise here needs a smaller interface, not an exception.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from turnwire.core.codec import LoggedEvent
from turnwire.core.errors import StoreError, TurnEndedError
from turnwire.core.events import Event
from turnwire.core.turns import Message, Session, Turn, TurnRecord, TurnState

logger = logging.getLogger("turnwire.runner")

OnBusy = Literal["enqueue", "reject", "interrupt"]
OnCrash = Literal["close", "resume"]
RUNNABLE = "runnable"
KEYS = "keys"
Scope = Literal["read", "write", "approve", "operate"]


class Agent(Protocol):
    """Answers a turn by yielding events; a `str` is a piece of the answer.

    It must not yield `session`, `message` or `done`: those are Turnwire's. It may be cancelled at any
    await and has a few seconds to clean up then. An `AgentError` it raises is shown to the user; of
    any other exception only the class name is.

    One that says `takes_attachments = True` finds the files that came with the message in
    `turn.options["attachments"]`; to any other, a message that has some is refused.

    One that says `on_crash = "resume"` is called again when the worker that ran it is lost, and goes on from
    `turn.progress`. A call that was under way is run again if its method `repeats(tool)` says so; otherwise a person
    is asked. The turn of any other ends as interrupted.
    """

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]: ...


def takes_attachments(agent: object) -> bool:
    return getattr(agent, "takes_attachments", False) is True


def resumes(agent: object) -> bool:
    return getattr(agent, "on_crash", "close") == "resume"


def repeats(agent: object, tool: str) -> bool:
    says: Callable[[str], object] | None = getattr(agent, "repeats", None)
    try:
        return says is not None and says(tool) is True
    except Exception:
        # Who cannot say that it is harmless has not said so.
        logger.exception("whether %s may be run again cannot be told; a person is asked", tool)
        return False


class HistorySource(Protocol):
    """Makes the conversation that an agent is given with a turn: no longer than it may be, and one that every
    model provider accepts. It never changes a log.
    """

    async def recall(self, record: TurnRecord) -> tuple[Message, ...]:
        """It runs inside the turn: it may be cancelled, and what it has to tell it may `emit()`. Raises StoreError."""
        ...

    async def close(self) -> None: ...


class NewTurn(Struct, frozen=True, kw_only=True):
    """A turn to be accepted. `fingerprint` tells a repeated request from another one with the same key.

    `session` is given when the turn begins a new one; it is made in the same step.
    """

    record: TurnRecord
    opening: Sequence[LoggedEvent]
    session: Session | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""


class Budget(Struct, frozen=True):
    """What a principal may use in a day and has used of it, in tokens. The next day begins at `resets_at` (ms).

    A limit of 0 is none.
    """

    limit: int
    used: int
    resets_at: int

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


class Admission(Struct, frozen=True, kw_only=True):
    """What must hold for a new turn to be accepted, checked in the same step that writes it."""

    on_busy: OnBusy = "enqueue"
    max_queued: int = 8
    max_unfinished: int = 64
    budget: Budget | None = None


class Suspension(Struct, frozen=True):
    """A turn is to wait for a person, until then; `checkpoint` is what its agent goes on with."""

    until: int
    checkpoint: bytes


class Command(Struct, frozen=True):
    """What somebody wants of a turn, from whatever process: that it is stopped."""

    turn_id: str
    reason: str
    kind: Literal["cancel"] = "cancel"


class Worker(Struct, frozen=True, kw_only=True):
    """A process that runs turns. `name` says where it is; times are in ms, by the store's clock."""

    id: str
    name: str = ""
    started_at: int = 0
    lease_until: int = 0
    draining: bool = False
    running: int = 0


class Accepted(Struct, frozen=True):
    """The turn, and whether this request made it or joined the one that was there."""

    record: TurnRecord
    created: bool


Refusal = StoreError | TurnEndedError
Settle = Callable[[int, Refusal | None], None]
Wake = Callable[[Sequence[LoggedEvent]], None]


class LogReader(Protocol):
    """Reads logs, and nothing else. Every event it hands out is committed."""

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        """Committed events after a position, at most `limit`, none if there are none yet.

        `epoch` is that of the event at `after`, which the reader has. Raises TurnNotFoundError, EventsGoneError, and
        LogRewoundError if the log has no such event (any more).
        """
        ...

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        """Calls `wake` on the event loop after commits to a turn, with what was committed, or with
        nothing where only the fact is known. With a session's id: after a turn was accepted in it, or it was deleted.
        With a worker's id: after a command to a turn that it runs. With `RUNNABLE`: when a turn may have become ready
        to be run. With `KEYS`: after an API key was made or revoked in another process. A hint: it may come late, twice
        or never for what happened before. Returns what ends it.
        """
        ...


class TurnStore(LogReader, Protocol):
    """Keeps turns and their logs."""

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        """Commits the turn with its opening events, or finds the one that its key or external id names.

        With `on_busy="interrupt"` the session's unfinished turns are commanded to end as superseded, in the same step.
        Raises IdempotencyConflictError, SessionBusyError, TooManyTurnsError, BudgetSpentError,
        SessionNotFoundError, SessionExistsError, StoreFullError. On any of them nothing is written.
        """
        ...

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        """By our id or by the client's own. TurnNotFoundError for what is not the principal's."""
        ...

    async def list_turns(self, principal: str, *, session_id: str | None = None, limit: int = 50) -> list[TurnRecord]:
        """The newest turns, oldest first."""
        ...

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        """The turn that was accepted next in the session, or its first one. The one before may have been deleted."""
        ...

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        """Erases an ended turn and its log; the turns that continue it continue the one before it.

        Raises TurnNotFoundError, SessionBusyError.
        """
        ...

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        """The states of the ended turns that this one continues, oldest first."""
        ...

    async def turn_state(self, turn_id: str) -> TurnState | None:
        """The state of an ended turn, also when its events are gone; None for one that runs or waits."""
        ...

    async def tokens_used(self, principal: str, day: int) -> int:
        """The tokens of the principal's turns that ended on this day (`budget.day_of`), also of deleted ones.

        A turn is counted in the step that ends it.
        """
        ...

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        """Makes the worker the turn's only writer: the epoch grows by one, older writers are fenced.

        Raises TurnEndedError, TurnNotFoundError, and TurnTakenError if another worker runs it that is alive.
        """
        ...

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        """Claims queued turns, oldest first, that have no unfinished turn before them in their session."""
        ...

    def before_commit(self, gather: Callable[[], None]) -> None:
        """Calls `gather`, once, when the store is ready for the next commit; what it appends is part of that.

        This is how groups come about without a timer: idle, it is called as soon as the event loop turns;
        under load, when the commit before has returned.
        """
        ...

    def append(
        self,
        turn_id: str,
        epoch: int,
        events: Sequence[LoggedEvent],
        settle: Settle,
        ending: TurnState | None = None,
        parking: Suspension | None = None,
        *,
        release: bool = False,
    ) -> None:
        """Hands events over to be committed. Never waits.

        `settle(number of events, None)` is called on the event loop once they are committed, in order,
        or with the error if they are not: FencedError for a writer of an older epoch, PositionError if
        they do not follow the last event, TurnEndedError after the last one, StoreFullError. It may be
        called before `append` returns. With `ending`, the last of the events is `done` and the turn is
        closed in the same step, and its attachments are forgotten; a full store still takes that. With `parking`, the
        turn waits from that step on, and nobody's lease is needed for it. With `release`, it is queued again from that
        step on, for whoever claims it next.
        """
        ...

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        """Keeps the worker's turns its own for another lease."""
        ...

    async def retire(self, worker: str) -> None:
        """The worker is gone, and says so: what it still runs may be taken over at once."""
        ...

    async def workers(self) -> list[Worker]:
        """Those whose lease holds, oldest first."""
        ...

    async def take_over(self, worker: str) -> list[TurnRecord]:
        """Claims, for this worker, some running turns of workers whose lease has run out."""
        ...

    async def command(self, command: Command) -> None:
        """Keeps the command until the turn has ended, and tells whoever runs it. Giving it again changes nothing.

        Raises TurnEndedError, TurnNotFoundError.
        """
        ...

    async def commands(self, worker: str) -> list[Command]:
        """The commands to turns that this worker runs, and to those that nobody does."""
        ...

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        """Notes whether the turn has readers in this process. True if it has some in any that is alive."""
        ...

    async def queued(self) -> list[TurnRecord]:
        """The turns that wait to be run, in the order they were accepted."""
        ...

    async def unfinished(self, session_id: str) -> list[TurnRecord]:
        """The turns of a session that have not ended, in the order they were accepted."""
        ...

    async def under_way(self, principal: str | None, limit: int) -> list[TurnRecord]:
        """The turns that have not ended, of this principal or of everybody, in the order they were accepted."""
        ...

    async def waiting(self, until: int | None = None) -> list[TurnRecord]:
        """The turns that wait for a person; with `until`, those whose time is over by then."""
        ...

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        """Makes the worker the only writer of a turn that waits, which it goes on doing.

        Raises TurnNotWaitingError, TurnNotFoundError.
        """
        ...

    async def checkpoint(self, turn_id: str) -> bytes:
        """What the agent of a turn left when it was last parked; nothing if it never was, or has ended."""
        ...

    async def maintain(self, *, expire_before: int) -> None:
        """Seals logs of ended turns, and drops the events (not the state) of those that ended before then."""
        ...


class Notice(Struct, frozen=True):
    """An ended turn of which somebody outside is yet to be told; `attempts` have failed so far."""

    record: TurnRecord
    attempts: int


class Outbox(Protocol):
    """Which ended turns somebody outside is yet to be told of.

    A store that was told to keep one adds a turn in the step that ends it, so none is forgotten, whoever dies when.
    A turn that is erased is nobody's news any more.
    """

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        """Those whose time has come. Nobody is given them again before `until`, unless they are put off to earlier."""
        ...

    async def put_off(self, turn_id: str, due_at: int) -> None:
        """The attempt has failed and is counted; the next one may be made at `due_at`."""
        ...

    async def dismiss(self, turn_id: str) -> None:
        """It is told, or given up."""
        ...


class SessionStore(Protocol):
    """Keeps sessions. Everything is asked for in the name of a principal; what is not theirs is not there."""

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        """Makes a session, or finds the one that has this external id. True if it was made."""
        ...

    async def find_session(self, principal: str, session_id: str) -> Session:
        """By our id or by the client's own. Raises SessionNotFoundError."""
        ...

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        """Newest activity first; `search` looks in titles, messages and answers; `before` is the last id seen."""
        ...

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session: ...

    async def delete_session(self, principal: str, session_id: str) -> None:
        """Erases the session, its turns and their logs. Its turns must have ended."""
        ...


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key as it is kept: never the secret, only its hash."""

    id: str
    digest: str
    principal: str
    scopes: tuple[Scope, ...]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None


class KeyStore(Protocol):
    async def list_keys(self) -> list[ApiKey]: ...

    async def add_key(self, key: ApiKey) -> None: ...

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        """Raises KeyNotFoundError. Revoking twice is revoking once."""
        ...


class Store(TurnStore, SessionStore, KeyStore, Outbox, Protocol):
    """All of it in one place, so that a turn and its session change in one step."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it too, so that a worker without a lease must stop what it does."""
        ...

    async def open(self) -> None:
        """Raises StoreUnusableError, which says what to do."""
        ...

    async def close(self) -> None: ...


class Gap(Struct, frozen=True):
    """Events after `after` and before `first_kept` are gone; `state` is what they came to."""

    after: int
    first_kept: int
    state: TurnState


class Reset(Struct, frozen=True):
    """The reader's position is not of this log; it is replayed from the start."""


class Reconnect(Struct, frozen=True):
    """The server closes this stream; come back after `retry_ms`."""

    retry_ms: int


Control = Gap | Reset | Reconnect


class Encoder(Protocol):
    @property
    def takes_heartbeat(self) -> bool:
        """Whether the wire's heartbeat may be sent after the last frame."""
        ...

    def frame(self, logged: LoggedEvent) -> bytes:
        """All that the wire says about this event; of a wire that keeps state it may be empty.

        Raises RestartedError if what was said before has become void and cannot be taken back.
        """
        ...

    def pause(self) -> bytes:
        """What a stream says, and ends with, when the turn waits for a person; nothing if it stays open.

        Asking changes nothing. The frame of the first event after the wait begins with the same bytes, so that a
        stream that is read later has them too.
        """
        ...


class Wire(Protocol):
    """Writes a log in one client protocol: a pure function of the log, no I/O, no clock.

    `heartbeat` keeps an idle stream alive and is no part of the log's bytes; `opening` is sent at once
    when there is nothing else to send.
    """

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str:
        """The name, and what else the bytes depend on: whoever has the same key shares them."""
        ...

    @property
    def media_type(self) -> str: ...
    @property
    def keeps_state(self) -> bool:
        """Whether a frame depends on the events before it, so that an encoder must be given all of them."""
        ...

    @property
    def heartbeat(self) -> bytes: ...
    @property
    def opening(self) -> bytes: ...

    def encoder(self) -> Encoder:
        """A fresh encoder; it is given the events of one turn, in order."""
        ...

    def control(self, control: Control) -> bytes | None:
        """The wire's word for it; None if it has none and the connection must be broken instead."""
        ...
