"""The interfaces of stores and the values that they take and return: for authors of stores.

A store that cannot keep a promise made here needs a smaller interface, not an exception.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from msgspec import Struct

from turnwire.core.errors import StoreError, TurnEndedError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import AttachedFile, Usage
from turnwire.core.log.files import Blob
from turnwire.core.log.turns import Phase, Session, TurnRecord, TurnState

OnBusy = Literal["enqueue", "reject", "interrupt", "steer", "collect"]
RUNNABLE = "runnable"
KEYS = "keys"
Scope = Literal["read", "write", "approve", "operate"]


# Values that stores take and return


class NewTurn(Struct, frozen=True, kw_only=True):
    """A turn to be accepted. `fingerprint` tells a repeated request from a different one with the same key.

    With `session`, the turn begins a new session, which is created in the same step. For a fork, `forked_from` is the
    turn that it copies, and `entries` its journal. A turn whose `record` is waiting is accepted as waiting. `digests`
    are those of all files that the turn needs; `blobs` are the files that the client has sent with the request.
    """

    record: TurnRecord
    opening: Sequence[LoggedEvent]
    session: Session | None = None
    forked_from: str | None = None
    blobs: Sequence[Blob] = ()
    digests: Collection[str] = ()
    entries: Sequence["JournalEntry"] = ()
    idempotency_key: str | None = None
    fingerprint: str = ""


class Budget(Struct, frozen=True):
    """The tokens that a principal may use in a day and has used. The next day begins at `resets_at` (ms).

    A limit of 0 means no limit.
    """

    limit: int
    used: int
    resets_at: int

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


class Admission(Struct, frozen=True, kw_only=True):
    """The conditions for accepting a new turn, checked in the same step that writes it."""

    on_busy: OnBusy = "enqueue"
    max_queued: int = 8
    max_unfinished: int = 64
    max_file_bytes: int = 256 * 1024 * 1024
    budget: Budget | None = None


TurnStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled", "interrupted", "joined"]
"""The phase of an unfinished turn, or the outcome of an ended one."""


class TurnFilter(Struct, frozen=True, kw_only=True):
    """Conditions on the turns of a list; those that are None hold for every turn.

    `search` is text of the message, in any case. `before` and `after` are the ids of turns: the list has only turns
    that were accepted before the one and after the other.
    """

    agent: str | None = None
    status: TurnStatus | None = None
    search: str | None = None
    before: str | None = None
    after: str | None = None


class Accepted(Struct, frozen=True):
    """The turn, and whether this request created it or joined an existing one."""

    record: TurnRecord
    created: bool


class Command(Struct, frozen=True):
    """A request from any process to the worker that runs a turn: stop it."""

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


CallKind = Literal["model", "tool", "step", "segment", "input"]
CallState = Literal["started", "finished", "unrecorded", "shown", "waiting"]


class JournalEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a turn's journal: a change in the state of one call of a model or a tool.

    All entries of a call have the same `key`, which is unique in its segment: a part of a turn that begins with a
    `segment` entry, or with the turn. `since` is the position in the log at which the call began, `position` the last
    one that belongs to it.
    `names` are those of the agent (if known) and of the model or tool; `fingerprint` is a digest of the request.

    The states of a call:

    - `started`: the call may have taken effect.
    - `finished`: `result` is its result, an ASCII line of JSON.
    - `unrecorded`: the call has finished, but its result is too large or is not JSON.
    - `shown`: a finished call whose events stand at new positions, because a restart made the first ones void.
    - `waiting`: the call was stopped to wait for a person or the client; it runs again when there is an answer.

    The kinds of entries that are not about a single call:

    - `step`: the result of code that calls models and tools, if it has one. There is no entry for its start, and the
      calls inside a recorded step need not be repeated.
    - `segment`: begins a segment: that of a fork that continues with another message, or of an agent that has changed.
    - `input`: `result` has the messages that entered the turn before a call. It is committed with their `input` events.
    """

    kind: CallKind
    key: str
    state: CallState
    segment: int = 0
    epoch: int = 0
    since: int = 0
    position: int = 0
    names: tuple[str, ...] = ()
    fingerprint: str = ""
    agent_path: tuple[str, ...] = ()
    call_id: str = ""
    args: dict[str, Any] | None = None
    repeatable: bool = False
    usage: Usage | None = None
    result: bytes = b""


class Seal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The evidence for an ended turn's log and journal (see `core.log.seals`). Digests are SHA-256, in hexadecimal.

    `events` and `entries` are the numbers of lines, `log` and `journal` the digests of all of them, `last` that of the
    last event and `marks` that of the marks, which expire with the events. The signature is of the root.
    """

    turn_id: str
    events: int
    entries: int
    log: str
    journal: str
    last: str
    marks: str
    sealed_at: int
    signature: str | None = None
    log_marks: bytes = b""
    journal_marks: bytes = b""


Refusal = StoreError | TurnEndedError
Settle = Callable[[int, Refusal | None], None]
T = TypeVar("T")
Wake = Callable[[Sequence[LoggedEvent]], None]


class AppendRequest(Struct, eq=False):
    """Events and journal entries of a turn, and the change of the turn that is committed with them.

    It is the buffer between a writer and the store: the writer may add to it until the store sets `is_taken`, which it
    does when it begins the commit. From then on nobody changes the request. There may be entries without events.

    At most one of these is set: `ending` closes the turn, and the last event is `done`; `waiting_until` (ms)
    makes the turn wait for a person or its client until then, without a lease; `release` puts it back into the queue
    for any worker.
    """

    turn_id: str
    epoch: int
    events: list[LoggedEvent]
    settle: Settle
    ending: TurnState | None = None
    waiting_until: int | None = None
    release: bool = False
    is_taken: bool = False
    entries: Sequence[JournalEntry] = ()

    @property
    def first_position(self) -> int:
        """Return the position of the first event, or the next position of the log if there are only entries."""
        return self.events[0].position if self.events else self.last_position + 1

    @property
    def last_position(self) -> int:
        """Return the last position of the log after the commit."""
        return self.events[-1].position if self.events else self.entries[-1].position

    @property
    def new_phase(self) -> Phase | None:
        """Return the phase that the turn changes to, or None if it stays in its phase."""
        if self.ending is not None:
            return "ended"
        if self.waiting_until is not None:
            return "waiting"
        return "queued" if self.release else None


class Notice(Struct, frozen=True):
    """A turn that has ended or waits, and is still to be delivered to a webhook after `attempts` failed attempts.

    `taken_until` is the time until which the notice is hidden from others.
    """

    record: TurnRecord
    attempts: int
    taken_until: int = 0


class UnfinishedFilter(Struct, frozen=True, kw_only=True):
    """The unfinished turns to list: those with these values. `overdue_at` is the time by which a wait has expired."""

    principal: str | None = None
    phase: Phase | None = None
    worker: str | None = None
    overdue_at: int | None = None
    except_for: Collection[str] = ()

    def matches(self, record: TurnRecord) -> bool:
        return (
            self.principal in (None, record.principal)
            and self.phase in (None, record.phase)
            and self.worker in (None, record.worker)
            and (self.overdue_at is None or (record.waiting_until or 0) <= self.overdue_at)
            and record.id not in self.except_for
        )


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key as it is stored: the hash of the secret, never the secret."""

    id: str
    digest: str
    principal: str
    scopes: tuple[Scope, ...]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None


class Annotation(Struct, frozen=True, kw_only=True):
    """A value that is stored beside the logs: about a turn, a session or a principal. `kind` and `key` identify it.

    It is erased with its session and with its turn, if it names them.
    """

    kind: str
    key: str
    principal: str
    at: int
    value: str = ""
    session_id: str | None = None
    turn_id: str | None = None


# Stores


_FULL_PAGE_BYTES = 256 * 1024  # Less than the bound of every store.


def is_short(page: Sequence[LoggedEvent], limit: int) -> bool:
    """Return True if a page of a log ends where the log ended when it was read."""
    return len(page) < limit and sum([len(logged.body) for logged in page]) < _FULL_PAGE_BYTES


class LogReader(Protocol):
    """The read side of logs. Every event that it returns is committed."""

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        """Return at most `limit` committed events after a position, or none if there are none yet.

        A page has a bound in bytes too, whatever `limit` is: there may be more events than it returns. A page for which
        `is_short` is true has all of them.
        `epoch` is the epoch of the event at `after`, as the reader has it. Raises TurnNotFoundError, EventsGoneError,
        and LogRewoundError if the log has no such event (any more).
        """
        ...

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        """Call `wake` on the event loop after changes, and return a function that ends the watch.

        `key` is one of:

        - a turn's id: after commits to its log, with the committed events, or with none if they are not at hand;
        - a session's id: after a turn was accepted in it, or the session was deleted;
        - a worker's id: after a command to a turn that it runs;
        - `RUNNABLE`: when a turn may have become ready to run;
        - `KEYS`: after another process added or revoked an API key.

        A hint only: it is not promised that a wake comes promptly, once, or at all for earlier changes.
        """
        ...


class LogStore(LogReader, Protocol):
    """The write side of logs."""

    def append(self, request: AppendRequest) -> None:
        """Queue a request for the next commit. Never waits.

        A commit takes the requests of all turns. The first commit after a quiet moment begins at the next iteration of
        the event loop; a later one begins when the one before has returned and the store's commit interval is over.

        `settle(number of events, None)` is called on the event loop after the commit, in the order of the appends, or
        with the error if nothing was written: FencedError for a writer of an older epoch, PositionError if the events
        do not follow the last one or an entry is ahead of its events, TurnEndedError after `done`, StoreFullError. An
        ending removes the turn's attachments, and a full store still accepts it. Any process may end a queued turn as
        `joined`, in the epoch that its record has.

        Not promised: that requests of different turns are committed in the order in which they were made.
        """
        ...

    async def journal(self, turn_id: str) -> list[JournalEntry]:
        """Return the committed journal entries of a turn, in order; none if they are gone with the events.

        Raises TurnNotFoundError. The caller checks whose turn it is.
        """
        ...

    async def seal(self, turn_id: str) -> Seal | None:
        """Return the seal of an ended turn; None if it is not sealed yet.

        Raises TurnNotFoundError.
        """
        ...

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        """Return ended turns of all principals, by ascending ids."""
        ...

    async def maintain(self, *, expire_before: int) -> None:
        """Seal the logs of ended turns, and drop the events (not the state) of turns that ended before `expire_before`.

        The journal of a turn is sealed and dropped with its events. Its seal stays, without the marks.

        Runs in small steps that do not hold up appends. Not promised: that all of it is done in one call.
        """
        ...


class TurnStore(Protocol):
    """Turns: their records, their states, and what they used."""

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        """Commit a turn with its opening events, or find the turn that has the same key or external id.

        With `on_busy="interrupt"`, the session's unfinished turns are commanded to end as superseded in the same step.
        If the caller is cancelled, the turn is accepted, and its watchers are woken, or nothing is written.
        Raises IdempotencyConflictError, SessionBusyError, TooManyTurnsError, BudgetSpentError, SessionNotFoundError,
        SessionExistsError, StoreFullError, FilesFullError if the session had more than `max_file_bytes` of files,
        SessionFileNotFoundError for a digest that it does not have, and for a fork TurnNotFoundError or
        EventsGoneError if the turn that it copies was erased or has expired meanwhile; then nothing is written.
        """
        ...

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        """Return a turn by its id or by the client's own. Raises TurnNotFoundError, also for another principal's."""
        ...

    async def list_turns(
        self, principal: str, *, session_id: str | None = None, limit: int = 50, where: TurnFilter | None = None
    ) -> list[TurnRecord]:
        """Return the newest turns, oldest first; with `where.after`, those that come next after that turn.

        Raises TurnNotFoundError if `where` names a turn that does not exist.
        """
        ...

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        """Return the turn accepted next in the session, or its first turn. `after_turn_id` may have been deleted."""
        ...

    async def unfinished(
        self, session_id: str | None = None, *, where: UnfinishedFilter | None = None, limit: int = 1_000_000
    ) -> list[TurnRecord]:
        """Return the turns of a session, or of all, that have not ended, in the order of acceptance."""
        ...

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        """Erase an ended turn and its log; turns that continue it then continue the one before it.

        Raises TurnNotFoundError, SessionBusyError.
        """
        ...

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        """Return the states of the ended turns that this turn continues, oldest first."""
        ...

    async def turn_state(self, turn_id: str) -> TurnState | None:
        """Return the state of an ended turn, even if its events are gone, or None if it has not ended.

        Raises TurnNotFoundError.
        """
        ...

    async def tokens_used(self, principal: str, day: int) -> int:
        """Return the tokens of the principal's turns, deleted ones included, that ended on this day (`budget.day_of`).

        A turn is counted in the step that ends it.
        """
        ...


class ClaimStore(Protocol):
    """The right to run a turn: claims, leases of workers, and commands to the worker of a turn."""

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        """Make the worker the turn's only writer: the epoch grows by one, which fences older writers.

        Raises TurnEndedError, TurnNotFoundError, and TurnTakenError if another live worker runs it.
        """
        ...

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        """Claim queued turns, oldest first, that have no unfinished turn before them in their session."""
        ...

    async def take_over(self, worker: str) -> list[TurnRecord]:
        """Claim running turns of workers whose lease has expired. Not promised: that it claims all of them at once."""
        ...

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        """Make the worker the only writer of a waiting turn, which keeps waiting.

        Raises TurnNotWaitingError, TurnNotFoundError.
        """
        ...

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        """Extend the worker's lease, by which it keeps its turns."""
        ...

    async def retire(self, worker: str) -> None:
        """End the worker's lease: its running turns may be taken over at once."""
        ...

    async def workers(self) -> list[Worker]:
        """Return the workers with a valid lease, oldest first."""
        ...

    async def command(self, command: Command) -> None:
        """Store a command until the turn has ended, and wake the worker that runs it. Repeating it changes nothing.

        Raises TurnEndedError, TurnNotFoundError.
        """
        ...

    async def commands(self, worker: str) -> list[Command]:
        """Return the commands to turns that this worker runs, and to turns without a worker."""
        ...

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        """Record whether the turn has readers in this process. Return True if any live process has one."""
        ...


class SessionStore(Protocol):
    """Sessions. Every call names a principal; another principal's sessions do not exist for it."""

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        """Create a session, or find the one with this external id. The flag is True if it was created."""
        ...

    async def find_session(self, principal: str, session_id: str) -> Session:
        """Return a session by its id or by the client's own. Raises SessionNotFoundError."""
        ...

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        """Return sessions, newest activity first.

        `search` is matched in titles, messages and answers, ignoring case; `before` is the last id of the page before.
        Raises SessionNotFoundError for an unknown `before`.
        """
        ...

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        """Set the title. Raises SessionNotFoundError."""
        ...

    async def delete_session(self, principal: str, session_id: str) -> None:
        """Erase the session, its turns and their logs. Raises SessionNotFoundError, SessionBusyError."""
        ...


class BlobStore(Protocol):
    """Files of sessions, each kept once by its digest.

    A file is erased with its session, and with the last turn that needs it. `LogStore.maintain` erases files that were
    not stored or named since `expire_before`, when it has dropped the events of all turns that need them.
    """

    async def put_blob(self, principal: str, session_id: str, blob: Blob, *, max_bytes: int) -> None:
        """Store a file, or extend the time for which it is kept.

        Raises SessionNotFoundError, StoreFullError, and FilesFullError if the session had more than `max_bytes`.
        """
        ...

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        """Return a file. The caller checks whose session it is."""
        ...

    async def list_blobs(self, session_id: str) -> list[AttachedFile]:
        """Return the descriptions of a session's files, in the order in which they were stored."""
        ...


class KeyStore(Protocol):
    """API keys."""

    async def list_keys(self) -> list[ApiKey]: ...

    async def add_key(self, key: ApiKey) -> None: ...

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        """Set the time of revocation, if it is not set yet, and return the key. Raises KeyNotFoundError."""
        ...


class AnnotationStore(Protocol):
    """Annotations: feedback on turns, links that share sessions, push subscriptions, schedules, addresses of A2A."""

    async def annotate(self, annotation: Annotation) -> None:
        """Add an annotation, or replace the one of the same kind and key.

        Raises SessionNotFoundError or TurnNotFoundError if its principal has no such session or turn (any more).
        """
        ...

    async def find_annotation(self, kind: str, key: str) -> Annotation | None:
        """Return the annotation of any principal."""
        ...

    async def list_annotations(
        self,
        kind: str,
        principal: str | None,
        *,
        session_id: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Annotation]:
        """Return the annotations of a principal, or of all, by descending keys; `before` is the last key seen."""
        ...

    async def remove_annotations(
        self, kind: str, principal: str, *, key: str | None = None, session_id: str | None = None
    ) -> int:
        """Erase the principal's annotations with this key or of this session, and return their number."""
        ...


class Outbox(Protocol):
    """The queue of turns that have ended, and are still to be delivered to a webhook.

    A store that keeps an outbox adds a notice in the step that ends the turn, so no process can die in between; a store
    that also notes waits adds one in the step that suspends the turn. A turn has one notice, the newest. Erasing a turn
    removes its notice.
    Not promised: that a notice is delivered only once.
    """

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        """Return the due notices and hide them from every process until `until`."""
        ...

    async def reschedule(self, notice: Notice, due_at: int | None) -> None:
        """Count a failed attempt, and make the notice due again; with None, remove it: it was delivered or given up.

        A newer notice of the turn stays as it is.
        """
        ...


class StoreOptions(TypedDict, total=False):
    """The options that every store takes when it is made.

    A worker that does not renew its lease for `lease` seconds has lost its turns; `clock` is for tests. An outbox has
    the turns that have ended and, if it `notes_waits`, those that wait. `seal_key` signs the seals of logs.
    `commit_interval` is the shortest time in seconds between two commits of a busy store.
    """

    lease: float
    clock: Callable[[], float]
    keeps_outbox: bool
    notes_waits: bool
    seal_key: bytes | None
    commit_interval: float


class SqlConnection(Protocol):
    """A connection inside a transaction. `$1` stands for the first value; a row is a tuple."""

    async def fetch(self, query: str, *values: object) -> list[Any]: ...
    async def fetchrow(self, query: str, *values: object) -> Any: ...
    async def fetchval(self, query: str, *values: object) -> Any: ...
    async def execute(self, query: str, *values: object) -> object: ...


class NamedLeases(Protocol):
    """Named leases: at most one process holds a lease, until it releases the lease or does not renew it in time."""

    @property
    def seconds(self) -> float:
        """The time after which a lease that was not claimed again lapses."""
        ...

    @property
    def epochs(self) -> Mapping[str, int]:
        """The epoch of each lease that this process holds, as far as it knows. It grows with every holder."""
        ...

    async def claim(self, names: Sequence[str]) -> set[str]:
        """Claim or renew leases. Return those that this process has now. Raises StoreError."""
        ...

    async def release(self, names: Sequence[str]) -> None:
        """Give leases up, so that another process need not wait. Raises StoreError."""
        ...

    async def check(self, connection: SqlConnection, name: str, epoch: int) -> None:
        """Hold the lease until the transaction ends. Raises ShuttingDownError if another process has taken it over."""
        ...


class TableStore(Protocol):
    """Tables of plugins in the store's database.

    Tables are in the schema `turnwire`, as in `turnwire.telegram_answers`, and their names begin with the plugin's. The
    statements are the same for every database, so they use what PostgreSQL and SQLite both understand: the types TEXT,
    BIGINT and DOUBLE PRECISION, `ON CONFLICT` and `RETURNING`.
    """

    async def create_tables(self, statements: Sequence[str]) -> None:
        """Run `CREATE … IF NOT EXISTS` statements, one process at a time. Raises StoreError."""
        ...

    async def transaction(self, work: Callable[[SqlConnection], Awaitable[T]]) -> T:
        """Return the result of `work(connection)`: all that it writes is committed, or nothing if it raises.

        It is called again if the connection is lost, so it must be safe to repeat, and it awaits the connection alone.
        Raises StoreError, and what `work` raises.
        """
        ...

    def leases(self, seconds: float) -> NamedLeases | None:
        """Return the named leases of this process, or None if no other process uses the store."""
        ...


class BlockingConnection(Protocol):
    """A connection inside a transaction, for a thread that is not the event loop's. `?` stands for a value."""

    def execute(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Run a statement, and return its rows: tuples."""
        ...


class BlockingDatabase(Protocol):
    """The database of a shared store, for code that blocks. All methods may be called from any thread."""

    @property
    def location(self) -> str: ...

    def open(self, *, migrate: bool = True) -> None:
        """Connect, and bring the tables up to date; with `migrate=False` only check them. Safe to call again.

        Raises StoreUnusableError.
        """
        ...

    def close(self) -> None: ...

    def transaction(self, work: Callable[[Any], T]) -> T:
        """Return the result of `work(connection)`: all that it writes is committed, or nothing if it raises.

        It gets a `BlockingConnection`, and is called again if the connection is lost, so it must be safe to repeat.
        Raises StoreError, and what `work` raises.
        """
        ...

    def secret(self, name: str) -> bytes:
        """Return the secret of this name, the same for all processes that connect with the same password."""
        ...


class Store(
    LogStore,
    TurnStore,
    ClaimStore,
    SessionStore,
    BlobStore,
    KeyStore,
    AnnotationStore,
    Outbox,
    TableStore,
    Protocol,
):
    """The union of all store interfaces: one database, so that a turn and its session change in one step."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it, so that a worker that loses its lease must stop its turns."""
        ...

    async def open(self) -> None:
        """Open the store. Raises StoreUnusableError, whose message says what to do."""
        ...

    async def close(self) -> None:
        """Commit what was appended before, and release the store. It cannot be opened again."""
        ...
