"""Helpers that create turns, write to them and read them back."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

from turnwire.core.contracts.stores import Accepted, Admission, AppendRequest, LogReader, NewTurn, Store
from turnwire.core.ids import new_id
from turnwire.core.log.codec import LoggedEvent, log_event, now_ms
from turnwire.core.log.events import DoneEvent, Event, Outcome, TokenEvent
from turnwire.core.log.files import Blob
from turnwire.core.log.follow import follow
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turn_log import TurnLog, opening_events
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits

# The longest time, in seconds, that a test waits for anything.
BOUND = 120.0


async def new_session_id(store: Store, principal: str = "ann") -> str:
    session, _ = await store.ensure_session(principal, None, None)
    return session.id


async def start(
    store: Store,
    *,
    session_id: str | None = None,
    principal: str = "ann",
    message: str = "hello",
    key: str | None = None,
    fingerprint: str = "",
    admission: Admission | None = None,
    blobs: Sequence[Blob] = (),
    digests: Collection[str] | None = None,
    **fields: Any,
) -> Accepted:
    """Have the store accept a turn, by default in a new session."""
    record = TurnRecord(
        id=new_id(),
        session_id=session_id or await new_session_id(store, principal),
        principal=principal,
        agent="echo",
        message=message,
        last_position=2,
        **{"created_at": now_ms(), **fields},
    )
    new = NewTurn(
        record=record,
        opening=opening_events(record, principal),
        idempotency_key=key,
        fingerprint=fingerprint,
        blobs=blobs,
        digests=[blob.digest for blob in blobs] if digests is None else digests,
    )
    return await store.create_turn(new, admission or Admission())


async def started(store: Store, **details: Any) -> TurnRecord:
    """Return an accepted turn, which is queued."""
    return (await start(store, **details)).record


async def claimed(store: Store, worker: str = "worker", **details: Any) -> TurnRecord:
    """Return a turn that a live worker has claimed."""
    await store.renew(worker)
    return await store.claim((await started(store, **details)).id, worker)


async def seized(store: Store, record: TurnRecord, worker: str) -> TurnRecord:
    """Return the turn claimed by another worker, after its own has retired."""
    await store.retire(record.worker or "")
    await store.renew(worker)
    return await store.claim(record.id, worker)


async def write(store: Store, record: TurnRecord, *events: Event, end: Outcome | None = None) -> None:
    """Write to a claimed turn from its last position on, and end it with the outcome `end`, if any."""
    if end is None:
        await append(store, record.id, record.epoch, record.last_position + 1, *events)
        return
    log = TurnLog(store, record, Limits())
    await log.restore()
    for event in events:
        log.append(event)
    await log.end(end)


async def ended(store: Store, *events: Event, outcome: Outcome = "completed", **details: Any) -> TurnRecord:
    """Return an ended turn with these events."""
    record = await claimed(store, **details)
    await write(store, record, *(events or (TokenEvent("hello"), TokenEvent(" there"))), end=outcome)
    return await store.find_turn(record.principal, record.id)


async def append(
    store: Store,
    turn_id: str,
    epoch: int,
    position: int,
    *events: Event,
    end: bool = False,
    on_commit: Callable[[], None] = lambda: None,
) -> Sequence[LoggedEvent]:
    """Append events as they are, right or wrong, and raise the error of the store.

    `on_commit` is called at the moment the store reports the commit.
    """
    logged = [log_event(event, at, epoch) for at, event in enumerate(events, start=position)]
    fold = TurnFold()
    for event in logged:
        fold.add(event)
    settled: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def settle(count: int, error: Exception | None) -> None:
        if error is None:
            on_commit()
            settled.set_result(count)
        else:
            settled.set_exception(error)

    store.append(AppendRequest(turn_id, epoch, logged, settle, fold.state() if end else None))
    async with asyncio.timeout(BOUND):
        assert await settled == len(events)
    return logged


async def queued_turns(store: Store) -> list[TurnRecord]:
    return [record for record in await store.unfinished(limit=1_000) if record.phase == "queued"]


def done(record: TurnRecord, outcome: Outcome = "completed") -> DoneEvent:
    return DoneEvent(outcome, record.session_id, record.id)


async def whole_log(store: LogReader, turn_id: str, after: int = 0, page: int = 3) -> list[LoggedEvent]:
    """Return all committed events, read in small pages."""
    log: list[LoggedEvent] = []
    while events := await store.read(turn_id, after, page):
        assert len(events) <= page
        log += events
        after = events[-1].position
    return log


async def followed(store: LogReader, turn_id: str, after: int = 0, count: int | None = None) -> list[LoggedEvent]:
    """Return the events that a follower gets up to the end of the turn, or up to `count` of them."""
    seen: list[LoggedEvent] = []
    async with asyncio.timeout(BOUND), aclosing(follow(store, turn_id, after)) as batches:
        async for batch in batches:
            seen += batch
            if count is not None and len(seen) >= count:
                break
    return seen


def positions(log: Sequence[LoggedEvent]) -> list[int]:
    return [logged.position for logged in log]


def texts(log: Sequence[LoggedEvent]) -> list[str]:
    return [logged.event.content for logged in log if isinstance(logged.event, TokenEvent)]


def types(log: Sequence[LoggedEvent]) -> list[str]:
    return [str(type(logged.event).__struct_config__.tag) for logged in log]
