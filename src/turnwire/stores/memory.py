"""A store that forgets: for tests and throw-away demos. The same promises while the process lives.

`world` outlives the store object, so that a test can lose one and open another on the same data,
as a restarted process would.
"""

import asyncio
import time
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from turnwire.core.budget import day_of, tokens_in
from turnwire.core.codec import LoggedEvent, now_ms
from turnwire.core.contracts import (
    RUNNABLE,
    Accepted,
    Admission,
    ApiKey,
    Command,
    NewTurn,
    Notice,
    Settle,
    Suspension,
    Wake,
    Worker,
)
from turnwire.core.errors import (
    EventsGoneError,
    IdempotencyConflictError,
    KeyNotFoundError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    TurnEndedError,
    TurnNotFoundError,
    TurnNotWaitingError,
)
from turnwire.core.turns import Phase, Session, TurnRecord, TurnState, new_session, title_from
from turnwire.stores.rules import (
    CommitHooks,
    Head,
    Leases,
    ReadyQueue,
    Watchers,
    check_admission,
    check_free,
    lasting,
    read_known,
)

# What the memory store keeps: plain values, and what is found from them.


class StoredTurn(Struct):
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


class MemoryTables(Struct):
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    turns: dict[str, StoredTurn] = field(default_factory=dict[str, StoredTurn])
    # The rest is found from the turns, kept so that nothing has to be searched for.
    turn_names: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])
    session_names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    session_turns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    unfinished: Counter[str] = field(default_factory=Counter[str])
    lineup: ReadyQueue = field(default_factory=ReadyQueue)
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    ended: deque[str] = field(default_factory=deque[str])
    spent: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    keys: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    outbox: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """When a turn may be told of, and how often that has failed."""


# Sessions, keys and the outbox.


class MemoryRegistry:
    def __init__(self, world: MemoryTables) -> None:
        self._world = world
        self._watchers = Watchers()

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        if external_id is not None and (known := self._world.session_names.get((principal, external_id))):
            return self._world.sessions[known], False
        session = new_session(principal, external_id, title)
        self._add_session(session)
        return session, True

    def _add_session(self, session: Session) -> None:
        self._world.sessions[session.id] = session
        self._world.session_turns[session.id] = []
        if session.external_id is not None:
            self._world.session_names[session.principal, session.external_id] = session.id

    async def find_session(self, principal: str, session_id: str) -> Session:
        own_id = self._world.session_names.get((principal, session_id), session_id)
        session = self._world.sessions.get(own_id)
        if session is None or session.principal != principal:
            raise SessionNotFoundError(session_id)
        return session

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        sessions = [session for session in self._world.sessions.values() if session.principal == principal]
        if search:
            sessions = [session for session in sessions if self._mentions(session, search.casefold())]
        sessions.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
        if before is not None:
            last = await self.find_session(principal, before)
            sessions = [s for s in sessions if (s.updated_at, s.id) < (last.updated_at, last.id)]
        return sessions[:limit]

    def _mentions(self, session: Session, wanted: str) -> bool:
        if wanted in (session.title or "").casefold():
            return True
        kept_turns = [self._world.turns[turn_id] for turn_id in self._world.session_turns[session.id]]
        return any(
            wanted in kept.record.message.casefold() or (kept.state and wanted in kept.state.text.casefold())
            for kept in kept_turns
        )

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        session = replace(await self.find_session(principal, session_id), title=title)
        self._world.sessions[session.id] = session
        return session

    async def delete_session(self, principal: str, session_id: str) -> None:
        session = await self.find_session(principal, session_id)
        world = self._world
        if unfinished := world.unfinished[session.id]:
            raise SessionBusyError(session.id, unfinished)
        for turn_id in world.session_turns.pop(session.id):
            del world.turns[turn_id]
        world.turn_names = {name: turn_id for name, turn_id in world.turn_names.items() if turn_id in world.turns}
        world.session_names.pop((principal, session.external_id or ""), None)
        del world.sessions[session.id]
        self._watchers.notify(session.id, ())

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        outbox, turns = self._world.outbox, self._world.turns
        for turn_id in [turn_id for turn_id in outbox if turn_id not in turns]:
            del outbox[turn_id]
        taken = [(turn_id, attempts) for turn_id, (due_at, attempts) in outbox.items() if due_at <= now][:limit]
        outbox.update({turn_id: (until, attempts) for turn_id, attempts in taken})
        return [Notice(turns[turn_id].current(), attempts) for turn_id, attempts in taken]

    async def put_off(self, turn_id: str, due_at: int) -> None:
        if (kept := self._world.outbox.get(turn_id)) is not None:
            self._world.outbox[turn_id] = (due_at, kept[1] + 1)

    async def dismiss(self, turn_id: str) -> None:
        self._world.outbox.pop(turn_id, None)

    async def list_keys(self) -> list[ApiKey]:
        return list(self._world.keys.values())

    async def add_key(self, key: ApiKey) -> None:
        self._world.keys[key.id] = key

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        if key_id not in self._world.keys:
            raise KeyNotFoundError(key_id)
        key = self._world.keys[key_id]
        self._world.keys[key_id] = key if key.revoked_at else replace(key, revoked_at=at)
        return self._world.keys[key_id]


# Memory is all there is, so only the newest logs are kept whole; older ones keep their state.
_MOST_ENDED_LOGS = 256


class MemoryStore(MemoryRegistry):
    is_shared = False

    def __init__(
        self,
        world: MemoryTables | None = None,
        *,
        lease: float = 10,
        clock: Callable[[], float] = time.monotonic,
        keeps_outbox: bool = False,
    ) -> None:
        super().__init__(world or MemoryTables())
        self._keeps_outbox = keeps_outbox
        self._leases = Leases(lease, clock)
        self._gatherers = CommitHooks()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # Turns

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        record = new.record
        if (kept := self._find_repeated(new)) is not None:
            if kept.fingerprint != new.fingerprint:
                raise IdempotencyConflictError(new.idempotency_key or record.external_id or "")
            return Accepted(kept.current(), created=False)
        session = new.session or await self.find_session(record.principal, record.session_id)
        if new.session is not None and (record.principal, session.external_id or "") in self._world.session_names:
            raise SessionExistsError(session.external_id or "")
        world, principal = self._world, record.principal
        check_admission(admission, session.id, world.unfinished[session.id], world.unfinished[principal])
        if new.session is not None:
            self._add_session(session)
        siblings = world.session_turns[session.id]
        if record.parent_turn_id is None and siblings:
            record = replace(record, parent_turn_id=siblings[-1])
        head = Head(record.id, record.epoch, len(new.opening))
        world.turns[record.id] = StoredTurn(record, head, list(new.opening), new.idempotency_key, new.fingerprint)
        siblings.append(record.id)
        if admission.on_busy == "interrupt":
            for turn_id in world.lineup.unfinished(session.id):
                await self.command(Command(turn_id, "superseded"))
        is_ready = world.lineup.add(session.id, record.id)
        world.unfinished[session.id] += 1
        world.unfinished[principal] += 1
        for kind, name in (("key", new.idempotency_key), ("id", record.external_id)):
            if name is not None:
                world.turn_names[principal, kind, name] = record.id
        world.sessions[session.id] = replace(
            session,
            title=session.title or title_from(record.message),
            updated_at=record.created_at,
            turn_count=session.turn_count + 1,
        )
        self._watchers.notify(session.id, ())
        self._tell_ready(is_ready)
        return Accepted(record, created=True)

    def _tell_ready(self, is_ready: bool) -> None:
        if is_ready:
            self._watchers.notify(RUNNABLE, ())

    def _find_repeated(self, new: NewTurn) -> StoredTurn | None:
        for kind, name in (("key", new.idempotency_key), ("id", new.record.external_id)):
            turn_id = self._world.turn_names.get((new.record.principal, kind, name or ""))
            if turn_id is not None:
                return self._world.turns[turn_id]
        return None

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        own_id = self._world.turn_names.get((principal, "id", turn_id), turn_id)
        kept = self._world.turns.get(own_id)
        if kept is None or kept.record.principal != principal:
            raise TurnNotFoundError(turn_id)
        return kept.current()

    async def list_turns(self, principal: str, *, session_id: str | None = None, limit: int = 50) -> list[TurnRecord]:
        return [
            kept.current()
            for kept in self._world.turns.values()
            if kept.record.principal == principal and session_id in (None, kept.record.session_id)
        ][-limit:]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        ids = self._world.session_turns.get(session_id, [])
        # Ids grow with time, so the place of one that was deleted is known all the same.
        place = ids.index(after_turn_id) + 1 if after_turn_id in ids else bisect(ids, after_turn_id or "")
        return self._world.turns[ids[place]].current() if place < len(ids) else None

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        record, world = await self.find_turn(principal, turn_id), self._world
        if record.phase != "ended":
            raise SessionBusyError(record.session_id, 1)
        del world.turns[record.id]
        world.session_turns[record.session_id].remove(record.id)
        world.turn_names = {name: turn_id for name, turn_id in world.turn_names.items() if turn_id in world.turns}
        for sibling in map(world.turns.__getitem__, world.session_turns[record.session_id]):
            if sibling.record.parent_turn_id == record.id:
                sibling.record = replace(sibling.record, parent_turn_id=record.parent_turn_id)
        session = world.sessions[record.session_id]
        world.sessions[session.id] = replace(session, turn_count=session.turn_count - 1)

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        states: list[TurnState] = []
        parent = self._kept(turn_id).record.parent_turn_id
        while parent is not None and len(states) < limit:
            kept = self._world.turns.get(parent)
            if kept is None:
                break
            if kept.state is not None:
                states.append(kept.state)
            parent = kept.record.parent_turn_id
        return states[::-1]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        return self._kept(turn_id).state

    async def tokens_used(self, principal: str, day: int) -> int:
        return self._world.spent[principal, day]

    # Who runs them

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        kept = self._kept(turn_id)
        check_free(kept.record, worker, self._leases)
        epoch = kept.head.claim(worker)
        started_at = kept.record.started_at or now_ms()
        kept.record = replace(kept.record, phase="running", worker=worker, epoch=epoch, started_at=started_at)
        self._world.lineup.take(turn_id)
        return kept.current()

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        return [await self.claim(turn_id, worker) for turn_id in self._world.lineup.ready(limit)]

    async def take_over(self, worker: str) -> list[TurnRecord]:
        lost = [turn.id for turn in self._in_phase("running") if not self._leases.holds(turn.worker)]
        return [await self.claim(turn_id, worker) for turn_id in lost]

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        kept = self._kept(turn_id)
        if kept.record.phase != "waiting":
            raise TurnNotWaitingError(turn_id)
        kept.record = replace(kept.record, epoch=kept.head.claim(worker))
        return kept.current()

    async def checkpoint(self, turn_id: str) -> bytes:
        return self._kept(turn_id).checkpoint

    async def queued(self) -> list[TurnRecord]:
        return self._in_phase("queued")

    async def unfinished(self, session_id: str) -> list[TurnRecord]:
        return [self._kept(turn_id).current() for turn_id in self._world.lineup.unfinished(session_id)]

    async def under_way(self, principal: str | None, limit: int) -> list[TurnRecord]:
        kept = [one for one in self._world.turns.values() if one.record.phase != "ended"]
        return [one.current() for one in kept if principal in (None, one.record.principal)][:limit]

    async def waiting(self, until: int | None = None) -> list[TurnRecord]:
        return [turn for turn in self._in_phase("waiting") if until is None or (turn.waiting_until or 0) <= until]

    def _in_phase(self, phase: Phase) -> list[TurnRecord]:
        return [kept.current() for kept in self._world.turns.values() if kept.record.phase == phase]

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        self._leases.renew(worker, name, draining)

    async def retire(self, worker: str) -> None:
        self._leases.retire(worker)

    async def workers(self) -> list[Worker]:
        return self._leases.workers(Counter(turn.worker for turn in self._in_phase("running")))

    async def command(self, command: Command) -> None:
        record = self._kept(command.turn_id).record
        if record.phase == "ended":
            raise TurnEndedError(record.id)
        self._world.commands.setdefault(record.id, command)
        if record.worker is not None:
            self._watchers.notify(record.worker, ())

    async def commands(self, worker: str) -> list[Command]:
        return [
            command
            for command in self._world.commands.values()
            if self._kept(command.turn_id).record.worker in (None, worker)
        ]

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        return self._leases.attend(turn_id, worker, present)

    # Their logs

    def before_commit(self, gather: Callable[[], None]) -> None:
        if not self._gatherers:
            asyncio.get_running_loop().call_soon(self._gatherers.run)
        self._gatherers.add(gather)

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
        kept = self._world.turns.get(turn_id)
        refusal = kept.head.refusal(epoch, events) if kept else TurnEndedError(turn_id)
        if kept is None or refusal is not None:
            settle(len(events), refusal)
            return
        kept.events.extend(events)
        kept.head.position = events[-1].position
        if ending is not None:
            kept.head.ended = True
            kept.state = ending
            kept.checkpoint = b""
            kept.record = replace(
                kept.record,
                phase="ended",
                outcome=ending.outcome,
                ended_at=events[-1].at,
                options=lasting(kept.record.options),
            )
            self._count_ended(kept)
            if self._keeps_outbox:
                self._world.outbox[turn_id] = (0, 0)
            self._world.spent[kept.record.principal, day_of(events[-1].at)] += tokens_in(ending.usage)
        if parking is not None:
            kept.checkpoint = parking.checkpoint
            kept.record = replace(kept.record, phase="waiting", worker=None, waiting_until=parking.until)
        if release:
            kept.record = replace(kept.record, phase="queued", worker=None)
        self._watchers.notify(turn_id, events)
        settle(len(events), None)
        if ending is not None:
            self._tell_ready(self._world.lineup.end(kept.record.session_id, turn_id))
        elif release:
            self._tell_ready(self._world.lineup.queue(kept.record.session_id, turn_id))

    def _count_ended(self, kept: StoredTurn) -> None:
        self._world.unfinished[kept.record.session_id] -= 1
        self._world.unfinished[kept.record.principal] -= 1
        self._world.commands.pop(kept.record.id, None)
        self._leases.leave(kept.record.id)
        self._world.ended.append(kept.record.id)
        if len(self._world.ended) > _MOST_ENDED_LOGS:
            oldest = self._world.turns.get(self._world.ended.popleft())
            if oldest is not None:
                self._expire(oldest)

    def _expire(self, kept: StoredTurn) -> None:
        kept.events = kept.events[-1:]
        kept.record = replace(kept.record, first_kept=kept.head.position)

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_known(self, turn_id, after, limit, epoch)
        kept = self._kept(turn_id)
        first_kept = kept.record.first_kept
        if after + 1 < first_kept:
            raise EventsGoneError(turn_id, after, first_kept)
        start = after + 1 - first_kept
        return kept.events[start : start + limit]

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._watchers.add(key, wake)

    async def maintain(self, *, expire_before: int) -> None:
        for kept in self._world.turns.values():
            if kept.record.ended_at is not None and kept.record.ended_at < expire_before:
                self._expire(kept)

    def _kept(self, turn_id: str) -> StoredTurn:
        try:
            return self._world.turns[turn_id]
        except KeyError:
            raise TurnNotFoundError(turn_id) from None
