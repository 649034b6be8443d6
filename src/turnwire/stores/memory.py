"""The memory store, for tests and throw-away demos: the same promises while the process lives.

`MemoryTables` outlives the store object, so that a test can lose one and open another on the same data, as a restarted
process would.
"""

import sqlite3
import time
from bisect import bisect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from turnwire.core.contracts.stores import (
    RUNNABLE,
    Accepted,
    Admission,
    Annotation,
    AnnotationKind,
    ApiKey,
    AppendRequest,
    Command,
    JournalEntry,
    NewTurn,
    Notice,
    Seal,
    SqlConnection,
    TurnFilter,
    Worker,
)
from turnwire.core.errors import (
    EventsGoneError,
    FilesFullError,
    IdempotencyConflictError,
    KeyNotFoundError,
    SessionBusyError,
    SessionExistsError,
    SessionFileNotFoundError,
    SessionNotFoundError,
    TurnEndedError,
    TurnNotFoundError,
    TurnNotWaitingError,
)
from turnwire.core.log.codec import LoggedEvent, now_ms
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import Blob, default_title
from turnwire.core.log.seals import make_seal
from turnwire.core.log.turns import Phase, Session, TurnRecord, TurnState, new_session
from turnwire.core.people.budget import day_of, tokens_in
from turnwire.stores.lines import event_page, to_entry_lines, to_lines
from turnwire.stores.rules import (
    CommitSchedule,
    Leases,
    LogHead,
    ReadyQueue,
    Watchers,
    check_admission,
    check_claim,
    check_fork,
    read_with_epoch,
    without_attachments,
)
from turnwire.stores.sqlite.tables import SqliteTables, run_at_once

T = TypeVar("T")
# Memory is all there is, so only the newest logs are kept whole; older ones keep their state.
_MAX_WHOLE_LOGS = 256
_COMMIT_INTERVAL = 0.001


class StoredTurn(Struct, gc=False):
    """A turn with its log; `events[0]` is at position `first_kept`."""

    record: TurnRecord
    head: LogHead
    events: list[LoggedEvent]
    fingerprint: str
    state: TurnState | None = None
    checkpoint: bytes = b""
    entries: list[JournalEntry] = field(default_factory=list[JournalEntry])
    seal: Seal | None = None

    def current(self) -> TurnRecord:
        if self.record.last_position != self.head.position:
            self.record = replace(self.record, last_position=self.head.position)
        return self.record

    def seal_with(self, key: bytes | None) -> None:
        if self.seal is None:
            log, journal = to_lines(self.events), to_entry_lines(self.entries)
            self.seal = make_seal(self.record.id, log, journal, key, now_ms())

    def expire(self, key: bytes | None) -> None:
        if len(self.events) == 1:
            return
        self.seal_with(key)
        self.seal = self.seal and replace(self.seal, log_marks=b"", journal_marks=b"")
        self.events = self.events[-1:]
        self.entries = []
        self.record = replace(self.record, first_kept=self.head.position)


class StoredBlob(Struct):
    """A file of a session, the time of its last use, and the turns that need it."""

    blob: Blob
    used_at: int
    turns: set[str] = field(default_factory=set[str])


class MemoryTables(Struct):
    """The data of a memory store: sessions, turns, keys and outbox, with indexes over them."""

    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    turns: dict[str, StoredTurn] = field(default_factory=dict[str, StoredTurn])
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    keys: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    spending: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    outbox: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By turn: when it is due, and the number of failed attempts."""
    annotations: dict[tuple[str, str], Annotation] = field(default_factory=dict[tuple[str, str], Annotation])
    """By kind and key."""
    blobs: dict[str, dict[str, StoredBlob]] = field(default_factory=dict[str, "dict[str, StoredBlob]"])
    """By session and digest."""
    plugins: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:", check_same_thread=False))
    """The tables of plugins."""
    # Indexes
    turn_names: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])
    """The ids of turns by principal, "key" or "id", and idempotency key or external id."""
    session_names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    session_turns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    unfinished: Counter[str] = field(default_factory=Counter[str])
    """The number of unfinished turns by principal."""
    queue: ReadyQueue = field(default_factory=ReadyQueue)
    whole_logs: deque[str] = field(default_factory=deque[str])

    def turn(self, turn_id: str) -> StoredTurn:
        """Return a turn. Raises TurnNotFoundError."""
        try:
            return self.turns[turn_id]
        except KeyError:
            raise TurnNotFoundError(turn_id) from None

    def in_phase(self, phase: Phase) -> list[TurnRecord]:
        return [turn.current() for turn in self.turns.values() if turn.record.phase == phase]

    def forget_names(self) -> None:
        """Drop the names of turns that were deleted."""
        self.turn_names = {name: turn_id for name, turn_id in self.turn_names.items() if turn_id in self.turns}

    def forget_annotations(self, matches: Callable[[Annotation], bool]) -> int:
        """Drop the annotations that match, and return their number."""
        names = [name for name, annotation in self.annotations.items() if matches(annotation)]
        for name in names:
            del self.annotations[name]
        return len(names)

    def check_blobs(self, session_id: str, blobs: Sequence[Blob], digests: Collection[str], max_bytes: int) -> None:
        """Raise FilesFullError or SessionFileNotFoundError if these files cannot be stored or are not there."""
        stored = {digest: len(each.blob.body) for digest, each in self.blobs.get(session_id, {}).items()}
        stored |= {blob.digest: len(blob.body) for blob in blobs}
        if blobs and sum(stored.values()) > max_bytes:
            raise FilesFullError(max_bytes)
        for digest in digests:
            if digest not in stored:
                raise SessionFileNotFoundError(digest)

    def add_blobs(
        self, session_id: str, blobs: Sequence[Blob], digests: Collection[str] = (), turn_id: str = ""
    ) -> None:
        """Store files, and record that a turn needs them."""
        stored = self.blobs.setdefault(session_id, {})
        for blob in blobs:
            stored.setdefault(blob.digest, StoredBlob(blob, 0)).used_at = now_ms()
        for digest in digests:
            stored[digest].used_at = now_ms()
            stored[digest].turns.add(turn_id)

    def release_blobs(self, session_id: str, turn_id: str) -> None:
        """Drop the files that this turn needs and no other one."""
        stored = self.blobs.get(session_id, {})
        for digest, blob in list(stored.items()):
            if turn_id in blob.turns:
                blob.turns.remove(turn_id)
                if not blob.turns:
                    del stored[digest]

    def expire_blobs(self, before: int) -> None:
        """Drop the files that were not used since, and that no turn with a whole log needs."""
        for stored in self.blobs.values():
            for digest, blob in list(stored.items()):
                is_needed = any(self.turns[turn_id].record.first_kept == 1 for turn_id in blob.turns)
                if blob.used_at < before and not is_needed:
                    del stored[digest]

    def add_session(self, session: Session) -> None:
        self.sessions[session.id] = session
        self.session_turns[session.id] = []
        if session.external_id is not None:
            self.session_names[session.principal, session.external_id] = session.id


class MemoryWriter:
    """Appends to logs: a commit is one step of the event loop."""

    def __init__(
        self,
        tables: MemoryTables,
        leases: Leases,
        watchers: Watchers,
        *,
        keeps_outbox: bool,
        notes_waits: bool,
        seal_key: bytes | None,
        interval: float,
    ) -> None:
        self._tables = tables
        self._seal_key = seal_key
        self._leases = leases
        self._watchers = watchers
        self._keeps_outbox = keeps_outbox
        self._notes_waits = notes_waits
        self._waiting: list[AppendRequest] = []
        self._schedule = CommitSchedule(self._commit, interval)

    def append(self, request: AppendRequest) -> None:
        if not self._waiting:
            self._schedule.request()
        self._waiting.append(request)

    def _commit(self) -> None:
        group, self._waiting = self._waiting, []
        for request in group:
            request.is_taken = True
        for request in group:
            self._write(request)

    def _write(self, request: AppendRequest) -> None:
        turn_id, events = request.turn_id, request.events
        turn = self._tables.turns.get(turn_id)
        refusal = turn.head.refusal(request) if turn else TurnEndedError(turn_id)
        if turn is None or refusal is not None:
            request.settle(len(events), refusal)
            return
        turn.events += events
        if request.entries:
            turn.entries += request.entries
        # A property is a call, and nearly every request changes nothing.
        phase = request.new_phase if request.ending or request.suspension or request.release else None
        if phase is not None:
            self._change(turn, request, phase)
        if events:
            turn.head.position = events[-1].position
            self._watchers.notify(turn_id, events)
        request.settle(len(events), None)
        if phase in ("ended", "queued"):
            queue = self._tables.queue
            move = queue.end if phase == "ended" else queue.queue
            if move(turn.record.session_id, turn_id):
                self._watchers.notify(RUNNABLE, ())

    def _change(self, turn: StoredTurn, request: AppendRequest, phase: Phase) -> None:
        if request.ending is not None:
            self._end(turn, request.ending)
        elif request.suspension is not None:
            turn.checkpoint = request.suspension.checkpoint
            turn.record = replace(turn.record, phase=phase, worker=None, waiting_until=request.suspension.until)
            if self._notes_waits:
                self._tables.outbox[turn.record.id] = (0, 0)
        else:
            turn.record = replace(turn.record, phase=phase, worker=None)

    def _end(self, turn: StoredTurn, state: TurnState) -> None:
        tables, record, ended_at = self._tables, turn.record, turn.events[-1].at
        turn.head.ended = True
        turn.state = state
        turn.checkpoint = b""
        options = without_attachments(record.options)
        turn.record = replace(record, phase="ended", outcome=state.outcome, ended_at=ended_at, options=options)
        tables.unfinished[record.principal] -= 1
        tables.commands.pop(record.id, None)
        tables.spending[record.principal, day_of(ended_at)] += tokens_in(state.usage)
        self._leases.forget_readers(record.id)
        if self._keeps_outbox:
            tables.outbox[record.id] = (0, 0)
        tables.whole_logs.append(record.id)
        if len(tables.whole_logs) > _MAX_WHOLE_LOGS:
            oldest = tables.turns.get(tables.whole_logs.popleft())
            if oldest is not None:
                oldest.expire(self._seal_key)


class MemoryQueries:
    """Reads logs and turns."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_with_epoch(self.read, turn_id, after, limit, epoch)
        turn = self._tables.turn(turn_id)
        first_kept = turn.record.first_kept
        if after + 1 < first_kept:
            raise EventsGoneError(turn_id, after, first_kept)
        start = after + 1 - first_kept
        return event_page(turn.events[start : start + limit], limit)

    async def journal(self, turn_id: str) -> list[JournalEntry]:
        return list(self._tables.turn(turn_id).entries)

    async def seal(self, turn_id: str) -> Seal | None:
        return self._tables.turn(turn_id).seal

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        ended = [turn for turn in self._tables.in_phase("ended") if turn.id > after_turn_id]
        return sorted(ended, key=lambda turn: turn.id)[:limit]

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        own_id = self._tables.turn_names.get((principal, "id", turn_id), turn_id)
        turn = self._tables.turns.get(own_id)
        if turn is None or turn.record.principal != principal:
            raise TurnNotFoundError(turn_id)
        return turn.current()

    async def list_turns(
        self, principal: str, *, session_id: str | None = None, limit: int = 50, where: TurnFilter | None = None
    ) -> list[TurnRecord]:
        where = where or TurnFilter()
        turns = [turn.current() for turn in self._tables.turns.values() if turn.record.principal == principal]
        ids = [turn.id for turn in turns]
        begin = 0 if where.after is None else ids.index((await self.find_turn(principal, where.after)).id) + 1
        end = None if where.before is None else ids.index((await self.find_turn(principal, where.before)).id)
        found = [turn for turn in turns[begin:end] if session_id in (None, turn.session_id) and _matches(turn, where)]
        return found[-limit:] if where.after is None else found[:limit]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        ids = self._tables.session_turns.get(session_id, [])
        # Ids grow with time, so the index of a deleted turn can still be found.
        index = ids.index(after_turn_id) + 1 if after_turn_id in ids else bisect(ids, after_turn_id or "")
        return self._tables.turns[ids[index]].current() if index < len(ids) else None

    async def unfinished(self, session_id: str) -> list[TurnRecord]:
        return [self._tables.turn(turn_id).current() for turn_id in self._tables.queue.unfinished(session_id)]

    async def under_way(self, principal: str | None, limit: int) -> list[TurnRecord]:
        turns = [turn for turn in self._tables.turns.values() if turn.record.phase != "ended"]
        return [turn.current() for turn in turns if principal in (None, turn.record.principal)][:limit]

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        states: list[TurnState] = []
        parent = self._tables.turn(turn_id).record.parent_turn_id
        while parent is not None and len(states) < limit:
            turn = self._tables.turns.get(parent)
            if turn is None:
                break
            if turn.state is not None:
                states.append(turn.state)
            parent = turn.record.parent_turn_id
        return states[::-1]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        return self._tables.turn(turn_id).state

    async def tokens_used(self, principal: str, day: int) -> int:
        return self._tables.spending[principal, day]


def _matches(turn: TurnRecord, where: TurnFilter) -> bool:
    return (
        where.agent in (None, turn.agent)
        and where.status in (None, turn.outcome or turn.phase)
        and (where.search or "").casefold() in turn.message.casefold()
    )


class MemoryClaims:
    """Claims, leases, commands and readers."""

    def __init__(self, tables: MemoryTables, leases: Leases, watchers: Watchers) -> None:
        self._tables = tables
        self._leases = leases
        self._watchers = watchers

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        turn = self._tables.turn(turn_id)
        check_claim(turn.record, worker, self._leases)
        epoch = turn.head.claim()
        started_at = turn.record.started_at or now_ms()
        turn.record = replace(turn.record, phase="running", worker=worker, epoch=epoch, started_at=started_at)
        self._tables.queue.take(turn_id)
        return turn.current()

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        return [await self.claim(turn_id, worker) for turn_id in self._tables.queue.ready(limit)]

    async def take_over(self, worker: str) -> list[TurnRecord]:
        lost = [turn.id for turn in self._tables.in_phase("running") if not self._leases.holds(turn.worker)]
        return [await self.claim(turn_id, worker) for turn_id in lost]

    async def claimed(self, worker: str, *, except_for: Collection[str] = ()) -> list[TurnRecord]:
        return [
            turn for turn in self._tables.in_phase("running") if turn.worker == worker and turn.id not in except_for
        ]

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        turn = self._tables.turn(turn_id)
        if turn.record.phase != "waiting":
            raise TurnNotWaitingError(turn_id)
        turn.record = replace(turn.record, epoch=turn.head.claim())
        return turn.current()

    async def waiting(self, until: int | None = None) -> list[TurnRecord]:
        waiting = self._tables.in_phase("waiting")
        return [turn for turn in waiting if until is None or (turn.waiting_until or 0) <= until]

    async def checkpoint(self, turn_id: str) -> bytes:
        return self._tables.turn(turn_id).checkpoint

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        self._leases.renew(worker, name, draining)

    async def retire(self, worker: str) -> None:
        self._leases.retire(worker)

    async def workers(self) -> list[Worker]:
        return self._leases.workers(Counter(turn.worker for turn in self._tables.in_phase("running")))

    async def command(self, command: Command) -> None:
        record = self._tables.turn(command.turn_id).record
        if record.phase == "ended":
            raise TurnEndedError(record.id)
        self._tables.commands.setdefault(record.id, command)
        if record.worker is not None:
            self._watchers.notify(record.worker, ())

    async def commands(self, worker: str) -> list[Command]:
        commands = self._tables.commands.values()
        return [each for each in commands if self._tables.turn(each.turn_id).record.worker in (None, worker)]

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        return self._leases.attend(turn_id, worker, present)


class MemoryAdmission:
    """Accepts turns."""

    def __init__(self, tables: MemoryTables, claims: MemoryClaims, watchers: Watchers) -> None:
        self._tables = tables
        self._claims = claims
        self._watchers = watchers

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        record = new.record
        if (repeated := self._find_repeated(new)) is not None:
            if repeated.fingerprint != new.fingerprint:
                raise IdempotencyConflictError(new.idempotency_key or record.external_id or "")
            return Accepted(repeated.current(), created=False)
        tables, principal = self._tables, record.principal
        session = new.session or tables.sessions.get(record.session_id)
        if session is None or session.principal != principal:
            raise SessionNotFoundError(record.session_id)
        if new.session is not None and (principal, session.external_id or "") in tables.session_names:
            raise SessionExistsError(session.external_id or "")
        check_admission(admission, session.id, len(tables.queue.unfinished(session.id)), tables.unfinished[principal])
        if new.forked_from is not None:
            check_fork(new.forked_from, tables.turn(new.forked_from).record.first_kept)
        tables.check_blobs(session.id, new.blobs, new.digests, admission.max_file_bytes)
        if new.session is not None:
            tables.add_session(session)
        siblings = tables.session_turns[session.id]
        if record.parent_turn_id is None and siblings:
            record = replace(record, parent_turn_id=siblings[-1])
        head = LogHead(record.id, record.epoch, len(new.opening))
        tables.turns[record.id] = StoredTurn(
            record,
            head,
            list(new.opening),
            new.fingerprint,
            checkpoint=new.checkpoint or b"",
            entries=list(new.entries),
        )
        siblings.append(record.id)
        if new.digests or new.blobs:
            tables.add_blobs(session.id, new.blobs, new.digests, record.id)
        if admission.on_busy == "interrupt":
            for turn_id in tables.queue.unfinished(session.id):
                await self._claims.command(Command(turn_id, "superseded"))
        is_ready = tables.queue.add(session.id, record.id, queued=record.phase == "queued")
        tables.unfinished[principal] += 1
        for kind, name in (("key", new.idempotency_key), ("id", record.external_id)):
            if name is not None:
                tables.turn_names[principal, kind, name] = record.id
        tables.sessions[session.id] = replace(
            session,
            title=session.title or default_title(record),
            updated_at=record.created_at,
            turn_count=session.turn_count + 1,
        )
        self._watchers.notify(session.id, ())
        if is_ready:
            self._watchers.notify(RUNNABLE, ())
        return Accepted(record, created=True)

    def _find_repeated(self, new: NewTurn) -> StoredTurn | None:
        for kind, name in (("key", new.idempotency_key), ("id", new.record.external_id)):
            turn_id = self._tables.turn_names.get((new.record.principal, kind, name or ""))
            if turn_id is not None:
                return self._tables.turns[turn_id]
        return None


class MemoryRegistry:
    """Sessions, API keys and the outbox."""

    def __init__(self, tables: MemoryTables, watchers: Watchers) -> None:
        self._tables = tables
        self._watchers = watchers

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        if external_id is not None and (own_id := self._tables.session_names.get((principal, external_id))):
            return self._tables.sessions[own_id], False
        session = new_session(principal, external_id, title)
        self._tables.add_session(session)
        return session, True

    async def find_session(self, principal: str, session_id: str) -> Session:
        own_id = self._tables.session_names.get((principal, session_id), session_id)
        session = self._tables.sessions.get(own_id)
        if session is None or session.principal != principal:
            raise SessionNotFoundError(session_id)
        return session

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        sessions = [session for session in self._tables.sessions.values() if session.principal == principal]
        if search:
            sessions = [session for session in sessions if self._mentions(session, search.casefold())]
        sessions.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
        if before is not None:
            last = await self.find_session(principal, before)
            sessions = [s for s in sessions if (s.updated_at, s.id) < (last.updated_at, last.id)]
        return sessions[:limit]

    def _mentions(self, session: Session, term: str) -> bool:
        if term in (session.title or "").casefold():
            return True
        turns = [self._tables.turns[turn_id] for turn_id in self._tables.session_turns[session.id]]
        return any(
            term in turn.record.message.casefold() or (turn.state and term in turn.state.text.casefold())
            for turn in turns
        )

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        session = replace(await self.find_session(principal, session_id), title=title)
        self._tables.sessions[session.id] = session
        return session

    async def delete_session(self, principal: str, session_id: str) -> None:
        session = await self.find_session(principal, session_id)
        tables = self._tables
        if unfinished := len(tables.queue.unfinished(session.id)):
            raise SessionBusyError(session.id, unfinished)
        for turn_id in tables.session_turns.pop(session.id):
            del tables.turns[turn_id]
            tables.outbox.pop(turn_id, None)
        tables.forget_names()
        tables.session_names.pop((principal, session.external_id or ""), None)
        del tables.sessions[session.id]
        tables.forget_annotations(lambda annotation: annotation.session_id == session.id)
        tables.blobs.pop(session.id, None)
        self._watchers.notify(session.id, ())

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        outbox, turns = self._tables.outbox, self._tables.turns
        due = [(turn_id, attempts) for turn_id, (due_at, attempts) in outbox.items() if due_at <= now][:limit]
        outbox.update({turn_id: (until, attempts) for turn_id, attempts in due})
        return [Notice(turns[turn_id].current(), attempts, until) for turn_id, attempts in due]

    async def put_off(self, turn_id: str, due_at: int, taken_until: int | None = None) -> None:
        entry = self._tables.outbox.get(turn_id)
        if entry is not None and taken_until in (None, entry[0]):
            self._tables.outbox[turn_id] = (due_at, entry[1] + 1)

    async def dismiss(self, turn_id: str, taken_until: int | None = None) -> None:
        entry = self._tables.outbox.get(turn_id)
        if entry is not None and taken_until in (None, entry[0]):
            del self._tables.outbox[turn_id]

    async def list_keys(self) -> list[ApiKey]:
        return list(self._tables.keys.values())

    async def add_key(self, key: ApiKey) -> None:
        self._tables.keys[key.id] = key

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        if key_id not in self._tables.keys:
            raise KeyNotFoundError(key_id)
        key = self._tables.keys[key_id]
        self._tables.keys[key_id] = key if key.revoked_at else replace(key, revoked_at=at)
        return self._tables.keys[key_id]


class MemoryBlobs:
    """Files of sessions."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def put_blob(self, principal: str, session_id: str, blob: Blob, *, max_bytes: int) -> None:
        session = self._tables.sessions.get(session_id)
        if session is None or session.principal != principal:
            raise SessionNotFoundError(session_id)
        self._tables.check_blobs(session_id, [blob], (), max_bytes)
        self._tables.add_blobs(session_id, [blob])

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        stored = self._tables.blobs.get(session_id, {}).get(digest)
        return stored.blob if stored else None

    async def list_blobs(self, session_id: str) -> list[AttachedFile]:
        return [stored.blob.info for stored in self._tables.blobs.get(session_id, {}).values()]


class MemoryAnnotations:
    """Annotations."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def annotate(self, annotation: Annotation) -> None:
        tables, principal = self._tables, annotation.principal
        session = tables.sessions.get(annotation.session_id or "")
        if annotation.session_id is not None and (session is None or session.principal != principal):
            raise SessionNotFoundError(annotation.session_id)
        turn = tables.turns.get(annotation.turn_id or "")
        if annotation.turn_id is not None and (turn is None or turn.record.principal != principal):
            raise TurnNotFoundError(annotation.turn_id)
        tables.annotations[annotation.kind, annotation.key] = annotation

    async def find_annotation(self, kind: AnnotationKind, key: str) -> Annotation | None:
        return self._tables.annotations.get((kind, key))

    async def list_annotations(
        self,
        kind: AnnotationKind,
        principal: str | None,
        *,
        session_id: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Annotation]:
        found = [
            annotation
            for annotation in self._tables.annotations.values()
            if annotation.kind == kind
            and principal in (None, annotation.principal)
            and session_id in (None, annotation.session_id)
            and (before is None or annotation.key < before)
        ]
        return sorted(found, key=lambda annotation: annotation.key, reverse=True)[:limit]

    async def remove_annotations(
        self, kind: AnnotationKind, principal: str, *, key: str | None = None, session_id: str | None = None
    ) -> int:
        return self._tables.forget_annotations(
            lambda each: (
                (each.kind, each.principal) == (kind, principal)
                and (each.key == key or (session_id is not None and each.session_id == session_id))
            )
        )


class MemoryMaintenance:
    """Expires logs, and erases turns."""

    def __init__(self, tables: MemoryTables, seal_key: bytes | None) -> None:
        self._tables = tables
        self._seal_key = seal_key

    async def maintain(self, *, expire_before: int) -> None:
        for turn in self._tables.turns.values():
            if turn.record.ended_at is not None:
                turn.seal_with(self._seal_key)
                if turn.record.ended_at < expire_before:
                    turn.expire(self._seal_key)
        self._tables.expire_blobs(expire_before)

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        tables = self._tables
        record = await MemoryQueries(tables).find_turn(principal, turn_id)
        if record.phase != "ended":
            raise SessionBusyError(record.session_id, 1)
        del tables.turns[record.id]
        tables.outbox.pop(record.id, None)
        tables.release_blobs(record.session_id, record.id)
        tables.forget_annotations(lambda annotation: annotation.turn_id == record.id)
        siblings = tables.session_turns[record.session_id]
        siblings.remove(record.id)
        tables.forget_names()
        for sibling in map(tables.turns.__getitem__, siblings):
            if sibling.record.parent_turn_id == record.id:
                sibling.record = replace(sibling.record, parent_turn_id=record.parent_turn_id)
        session = tables.sessions[record.session_id]
        tables.sessions[session.id] = replace(session, turn_count=session.turn_count - 1)


class MemoryPluginTables(SqliteTables):
    """The `TableStore` of the memory store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def transaction(self, work: Callable[[SqlConnection], Awaitable[T]]) -> T:
        with self._connection:
            return run_at_once(work, self._connection)


class MemoryStore:
    """A `Store` of one process, made of the parts above."""

    is_shared = False

    def __init__(
        self,
        tables: MemoryTables | None = None,
        *,
        lease: float = 10,
        clock: Callable[[], float] = time.monotonic,
        keeps_outbox: bool = False,
        notes_waits: bool = False,
        seal_key: bytes | None = None,
        commit_interval: float = _COMMIT_INTERVAL,
    ) -> None:
        self.tables = tables = tables or MemoryTables()
        leases, watchers = Leases(lease, clock), Watchers()
        self._writer = writer = MemoryWriter(
            tables,
            leases,
            watchers,
            keeps_outbox=keeps_outbox,
            notes_waits=notes_waits,
            seal_key=seal_key,
            interval=commit_interval,
        )
        queries = MemoryQueries(tables)
        claims = MemoryClaims(tables, leases, watchers)
        registry = MemoryRegistry(tables, watchers)
        annotations = MemoryAnnotations(tables)
        blobs = MemoryBlobs(tables)
        maintenance = MemoryMaintenance(tables, seal_key)

        self.read = queries.read
        self.watch = watchers.add
        self.append = writer.append
        self.journal = queries.journal
        self.seal = queries.seal
        self.ended_turns = queries.ended_turns
        self.maintain = maintenance.maintain

        self.create_turn = MemoryAdmission(tables, claims, watchers).create_turn
        self.find_turn = queries.find_turn
        self.list_turns = queries.list_turns
        self.next_turn = queries.next_turn
        self.unfinished = queries.unfinished
        self.under_way = queries.under_way
        self.delete_turn = maintenance.delete_turn
        self.history = queries.history
        self.turn_state = queries.turn_state
        self.tokens_used = queries.tokens_used

        self.claim = claims.claim
        self.claim_next = claims.claim_next
        self.take_over = claims.take_over
        self.claimed = claims.claimed
        self.hold = claims.hold
        self.waiting = claims.waiting
        self.checkpoint = claims.checkpoint
        self.renew = claims.renew
        self.retire = claims.retire
        self.workers = claims.workers
        self.command = claims.command
        self.commands = claims.commands
        self.attend = claims.attend

        self.ensure_session = registry.ensure_session
        self.find_session = registry.find_session
        self.list_sessions = registry.list_sessions
        self.rename_session = registry.rename_session
        self.delete_session = registry.delete_session
        self.put_blob = blobs.put_blob
        self.read_blob = blobs.read_blob
        self.list_blobs = blobs.list_blobs
        self.list_keys = registry.list_keys
        self.add_key = registry.add_key
        self.revoke_key = registry.revoke_key
        self.annotate = annotations.annotate
        self.find_annotation = annotations.find_annotation
        self.list_annotations = annotations.list_annotations
        self.remove_annotations = annotations.remove_annotations
        self.take_due = registry.take_due
        self.put_off = registry.put_off
        self.dismiss = registry.dismiss
        plugins = MemoryPluginTables(tables.plugins)
        self.create_tables = plugins.create_tables
        self.transaction = plugins.transaction
        self.leases = plugins.leases

    def may_be_watched_elsewhere(self, turn_id: str) -> bool:
        return False

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass
