"""The write side of one turn's log.

Exactly one `TurnLog` may write to a turn at a time; the store's epoch check sees to that also
across processes. Appending never waits for the disk: the writer is held back only when too
much of what it wrote is not committed yet.
"""

import asyncio
from collections.abc import Callable
from time import time_ns

from turnwire.core import metrics
from turnwire.core.budget import Limits
from turnwire.core.codec import TOKEN_BODY, LoggedEvent, encode_token, json_string, log_event
from turnwire.core.contracts import AppendRequest, LogStore, Refusal, Suspension
from turnwire.core.errors import EventTooLargeError, FencedError, TooManyEventsError, TurnEndedError
from turnwire.core.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    MessageEvent,
    Outcome,
    ResponseEvent,
    SessionEvent,
    TokenEvent,
)
from turnwire.core.follow import read_all
from turnwire.core.state import TurnFold
from turnwire.core.turns import TurnRecord

_SHORT_MS = 5


def opening_events(record: TurnRecord, by: str) -> tuple[LoggedEvent, LoggedEvent]:
    """How every log begins: committed when the turn is accepted, before any worker has claimed it."""
    return (
        log_event(SessionEvent(record.session_id, record.id, record.agent), 1, 0),
        log_event(MessageEvent(record.message, by, record.channel), 2, 0),
    )


class TurnLog:
    def __init__(
        self,
        store: LogStore,
        record: TurnRecord,
        limits: Limits,
        on_failure: Callable[[Refusal], None] | None = None,
    ) -> None:
        self.turn_id = record.id
        self.fold = TurnFold()
        self.ended = False
        self._session_id = record.session_id
        self._epoch = record.epoch
        self._position = self._committed = record.last_position
        self._store = store
        self._max_event_bytes = limits.max_event_bytes
        self._max_events = limits.max_events_per_turn
        self._max_uncommitted = limits.max_uncommitted_events
        self._on_failure = on_failure
        self.is_behind = False
        """Whether the store cannot keep up, so that the agent should wait for `room`."""
        self._gathered: list[LoggedEvent] = []
        self._uncommitted = 0
        self._last: LoggedEvent | None = None
        self._short_pauses = 0
        self._failure: Refusal | None = None
        self._changed: asyncio.Event | None = None
        # One object for all appends, so that a store can tell whose they are.
        self._settled = self._settle

    async def restore(self) -> None:
        """Folds what is in the log already."""
        async for events in read_all(self._store, self.turn_id):
            for logged in events:
                self.fold.add(logged)
                logged.decoded = None  # The store may keep these events; their values were needed only here.

    def append(self, event: Event) -> None:
        """Writes one event. Raises TurnEndedError, EventRefusedError, or why an earlier one was not committed."""
        if isinstance(event, TokenEvent) and not event.agent_path:
            self.append_token(event.content)
        else:
            logged = log_event(event, self._position + 1, self._epoch)
            self._check(logged.body)
            self._gather(logged)
            self.fold.add(logged)

    def append_token(self, content: str) -> None:
        """Writes a piece of the answer: the same as `append(TokenEvent(content))`, with no event made for it.

        Nearly every event comes through here, so it is written out where the rest is called.
        """
        if content.__class__ is str and content.isascii() and content.isprintable():
            body = b'{"type":"token","content":%b}' % json_string(content)
        else:
            content, body = encode_token(content)
        if self.ended or self._failure is not None or len(body) > self._max_event_bytes:
            self._check(body)
        position, at = self._position + 1, time_ns() // 1_000_000
        self._gather(LoggedEvent(position, self._epoch, at, body))
        self.fold.add_token(content, position, at)

    def _check(self, body: bytes) -> None:
        if self.ended:
            raise TurnEndedError(self.turn_id)
        if self._failure is not None:
            raise self._failure
        if len(body) > self._max_event_bytes:
            kind = body[9:].partition(b'"')[0].decode()
            raise EventTooLargeError(kind, len(body), self._max_event_bytes)

    def _gather(self, logged: LoggedEvent) -> None:
        if logged.position > self._max_events:
            raise TooManyEventsError(self._max_events)
        self._position = logged.position
        gathered = self._gathered
        if not gathered:
            self._store.before_commit(self._hand_over)
        gathered.append(logged)
        if len(gathered) > self._max_uncommitted:
            self.is_behind = True

    def _hand_over(self) -> None:
        events, self._gathered = self._gathered, []
        if events:
            self._uncommitted += len(events)
            last, self._last = self._last, events[-1]
            if last is not None:
                # Nearly all of them are short, and this is the path of every commit: those are only counted.
                if events[0].at - last.at < _SHORT_MS:
                    self._short_pauses += 1
                else:
                    self._time_pause(last, events[0])
            self._store.append(AppendRequest(self.turn_id, self._epoch, events, self._settled))

    def _time_pause(self, last: LoggedEvent, first: LoggedEvent) -> None:
        """A pause in which something else happened, a tool say, is not one between tokens."""
        if last.body.startswith(TOKEN_BODY) and first.body.startswith(TOKEN_BODY):
            metrics.TOKEN_GAP.observe((first.at - last.at) / 1000)

    def _count_short_pauses(self) -> None:
        metrics.TOKEN_GAP.observe_many(0.0, self._short_pauses)
        self._short_pauses = 0

    async def room(self) -> None:
        while self.is_behind and self._failure is None:
            await self._next_change()

    async def flush(self) -> None:
        """Waits until all that was written is committed. Raises StoreError if it is not."""
        self._hand_over()
        await self._all_settled()

    async def park(self, parking: Suspension) -> None:
        """Hands over what was written last, and from that step on the turn waits. Raises StoreError."""
        await self._hand_over_with(parking, release=False)

    async def release(self) -> None:
        """Hands over what was written last, and from that step on the turn is queued. Raises StoreError."""
        await self._hand_over_with(None, release=True)

    async def _hand_over_with(self, parking: Suspension | None, *, release: bool) -> None:
        self._count_short_pauses()
        if self._failure is None:
            events, self._gathered = self._gathered, []
            self._uncommitted += len(events)
            self._store.append(
                AppendRequest(self.turn_id, self._epoch, events, self._settled, suspension=parking, release=release)
            )
        await self._all_settled()

    async def _all_settled(self) -> None:
        while self._uncommitted > 0:
            await self._next_change()
        if self._failure is not None:
            raise self._failure

    async def end(
        self,
        outcome: Outcome,
        *,
        reason: str | None = None,
        response: ResponseEvent | None = None,
        error: ErrorEvent | None = None,
    ) -> None:
        """Writes the last events in one step and waits until they are committed. Raises StoreError if not."""
        self.ended = True
        done = DoneEvent(outcome, self._session_id, self.turn_id, reason=reason)
        events: list[LoggedEvent] = []
        for event in (response, error, done):
            if event is not None:
                self._position += 1
                events.append(log_event(event, self._position, self._epoch))
                self.fold.add(events[-1])
        if self._failure is None:
            events = self._gathered + events
            self._uncommitted += len(events)
            self._store.append(AppendRequest(self.turn_id, self._epoch, events, self._settled, self.fold.state()))
        self._gathered = []
        await self._all_settled()
        self._count_short_pauses()
        metrics.note_ending(outcome, self.fold.state().timings)

    async def rewind(self) -> None:
        """After a failure: goes back to what was committed. What was not has never happened."""
        self._position, self._failure = self._committed, None
        self.fold = TurnFold()
        await self.restore()

    def _settle(self, count: int, error: Refusal | None) -> None:
        self._uncommitted -= count
        self.is_behind = self._uncommitted + len(self._gathered) > self._max_uncommitted
        if error is None:
            self._committed += count
        elif self._failure is None:
            self._failure = error
            if isinstance(error, FencedError):
                metrics.FENCED.add()
            if self._on_failure is not None and not self.ended:
                self._on_failure(error)
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _next_change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()
