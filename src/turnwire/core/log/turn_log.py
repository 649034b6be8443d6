"""The write side of one turn's log.

Exactly one `TurnLog` may write to a turn at a time; the store's epoch check enforces that across processes too.
Appending never waits for the disk: events go into a buffer that the store takes with its next commit, and the agent is
held back only when too many of its events are not committed yet.
"""

import asyncio
from collections.abc import Callable
from time import time_ns

from msgspec import Struct

from turnwire.core import metrics
from turnwire.core.contracts.stores import AppendRequest, JournalEntry, LogStore, Refusal
from turnwire.core.errors import EventTooLargeError, FencedError, LogRewoundError, TooManyEventsError, TurnEndedError
from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent, ascii_json, encode_token, json_string, log_event
from turnwire.core.log.events import (
    AttachedFile,
    DoneEvent,
    ErrorEvent,
    Event,
    Joined,
    MessageEvent,
    Outcome,
    ResponseEvent,
    SessionEvent,
    TokenEvent,
)
from turnwire.core.log.follow import PAGE
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord

_SHORT_PAUSE_MS = 5
_SMALL_BYTES = 64
"""Nearly every token has a body of at most this size, so the number of tokens bounds the size of the answer."""


def opening_events(
    record: TurnRecord, by: str, attachments: tuple[AttachedFile, ...] = ()
) -> tuple[LoggedEvent, LoggedEvent]:
    """Return the first two events of a log, which are committed when the turn is accepted."""
    metadata = record.options.get("metadata") or None
    return (
        log_event(SessionEvent(record.session_id, record.id, record.agent), 1, 0),
        log_event(MessageEvent(record.message, by, record.channel, attachments, metadata), OPENING_POSITION, 0),
    )


class LogLimits(Struct, frozen=True, kw_only=True):
    """The limits of one log. They protect the process and its readers, so no operator sets them; tests lower them."""

    max_event_bytes: int = 256 * 1024
    """A larger event ends the turn."""
    max_response_bytes: int = 960 * 1024
    """A longer answer ends the turn: its `response` event repeats it, and most WebSocket clients take 1 MiB."""
    max_events_per_turn: int = 100_000
    """More events end the turn."""
    max_uncommitted_events: int = 1_000
    """The most events that an agent may be ahead of the store; then it waits."""
    max_entry_bytes: int = 1024 * 1024
    """The result of a call that is larger is not recorded in the journal."""
    max_journal_bytes: int = 16 * 1024 * 1024
    """When the results of a turn are larger together, no more of them are recorded."""


# A buffer that takes nothing: the next event begins another one.
_NO_REQUEST = AppendRequest("", 0, [], lambda count, error: None, is_taken=True)


class TurnLog:
    """Appends to the log of a claimed turn, and folds what it appends.

    `on_failure` is called with the first error of the store; `is_behind` is True while the agent should wait for room.
    """

    __slots__ = (
        "_answer_bytes",
        "_changed",
        "_committed",
        "_failure",
        "_free_until",
        "_limits",
        "_measured_until",
        "_on_failure",
        "_other_position",
        "_pauses",
        "_record",
        "_request",
        "_store",
        "_unsettled_requests",
        "ended",
        "epoch",
        "fold",
        "is_behind",
        "position",
    )

    def __init__(
        self,
        store: LogStore,
        record: TurnRecord,
        limits: LogLimits,
        on_failure: Callable[[Refusal], None] | None = None,
    ) -> None:
        self.fold = TurnFold()
        self.ended = False
        self.is_behind = False
        self.epoch = record.epoch
        self.position = self._committed = record.last_position
        """The position of the last event that was appended."""
        self._record = record
        self._store = store
        self._limits = limits
        # Up to this position, a small token needs no check.
        self._free_until = 0
        # An upper bound for the bytes of the answer, and the position up to which it counts them.
        self._answer_bytes = self._measured_until = 0
        self._on_failure = on_failure
        # The buffer; when the store has taken it, the next event begins another one.
        self._request = _NO_REQUEST
        self._unsettled_requests = 0
        self._failure: Refusal | None = None
        self._changed: asyncio.Event | None = None
        # Milliseconds between the tokens of two requests, and the position of the last event that is not a token.
        self._pauses: list[int] = []
        self._other_position = 0

    @property
    def turn_id(self) -> str:
        return self._record.id

    async def restore(self, known: TurnFold | None = None, note: Callable[[LoggedEvent], None] | None = None) -> None:
        """Fold the events of the log that come after those of `known`, and call `note` with each.

        Raises StoreError; then call it again.
        """
        fold = known or (TurnFold() if self.fold.position else self.fold)
        position = fold.position
        while position < self._committed and (events := await self._store.read(self.turn_id, position, PAGE)):
            for logged in events:
                fold.add(logged)
                if note is not None:
                    note(logged)
                logged.decoded = None  # The store may cache these events; the decoded values would double their memory.
            position = events[-1].position
        self.fold = fold
        self._answer_bytes, self._measured_until, self._free_until = len(fold.text), position, 0

    def append(self, event: Event) -> None:
        """Append one event. Raises TurnEndedError, EventRefusedError, or the failure of an earlier append."""
        if isinstance(event, TokenEvent) and not event.agent_path:
            self.append_token(event.content)
        else:
            logged = log_event(event, self.position + 1, self.epoch)
            self._check(logged.body)
            self._add(logged)
            self.fold.add(logged)

    def record(self, entry: JournalEntry) -> None:
        """Add a journal entry, which is committed with or after the events that were appended before it.

        Raises TurnEndedError, or the failure of an earlier append.
        """
        if self.ended:
            raise TurnEndedError(self.turn_id)
        if self._failure is not None:
            raise self._failure
        request = self._open_request()
        request.entries = (*request.entries, entry)

    def append_token(self, content: str) -> None:
        """Append a token of the answer: the same as `append(TokenEvent(content))` without making an event.

        Nearly every event comes through here, so the fast paths of the encoder, of `_add` and of the fold are inlined.
        """
        if content.__class__ is str and content.isascii() and content.isprintable():
            body = b'{"type":"token","content":%b}' % json_string(content)
        else:
            content, body = encode_token(content)
        position = self.position + 1
        if position > self._free_until or len(body) > _SMALL_BYTES:
            self._check_token(body)
        at = time_ns() // 1_000_000
        request = self._request
        if request.is_taken:
            # Measured between requests: within one, events follow at once. Between other events, a tool may have run.
            if request.events and self.position != self._other_position:
                self._pauses.append(at - request.events[-1].at)
            request = self._begin_request()
        request.events.append(LoggedEvent(position, self.epoch, at, body))
        self.position = position
        fold = self.fold
        if fold.pieces:
            fold.pieces.append(content)
            fold.position = position
        else:
            fold.add_token(content, position, at)

    def _check(self, body: bytes) -> None:
        if self.ended:
            raise TurnEndedError(self.turn_id)
        if self._failure is not None:
            raise self._failure
        if len(body) > self._limits.max_event_bytes:
            raise EventTooLargeError(LoggedEvent(0, 0, 0, body).type, len(body), self._limits.max_event_bytes)
        if self.position >= self._limits.max_events_per_turn:
            raise TooManyEventsError(self._limits.max_events_per_turn)

    def _check_token(self, body: bytes) -> None:
        """Check everything about a token, and set the position up to which the next small ones need no check."""
        self._check(body)
        self._answer_bytes += (self.position - self._measured_until) * _SMALL_BYTES + len(body)
        self._measured_until = self.position + 1
        if self._answer_bytes > self._limits.max_response_bytes:
            self._answer_bytes = len(ascii_json(self.fold.text)) + len(body)
            self._check_response_size(self._answer_bytes)
        free_tokens = (self._limits.max_response_bytes - self._answer_bytes) // _SMALL_BYTES
        uncommitted_until = self._committed + self._limits.max_uncommitted_events
        self._free_until = min(uncommitted_until, self._limits.max_events_per_turn, self._measured_until + free_tokens)
        self.is_behind = self.position >= uncommitted_until
        self._report_pauses()

    def close(self) -> None:
        """Refuse every event from here on."""
        self.ended = True
        self._free_until = 0

    def reopen(self) -> None:
        """Accept events again after `close`, to write how the turn is handed over or suspended."""
        self.ended = False

    def _check_response_size(self, size: int) -> None:
        """Raise EventTooLargeError if the `response` event would be too large."""
        if size > self._limits.max_response_bytes:
            raise EventTooLargeError("response", size, self._limits.max_response_bytes)

    def _add(self, logged: LoggedEvent) -> None:
        self._open_request().events.append(logged)
        self.position = self._other_position = logged.position
        if self.position - self._committed > self._limits.max_uncommitted_events:
            self.is_behind = True

    def _begin_request(self) -> AppendRequest:
        request = self._request = AppendRequest(self.turn_id, self.epoch, [], self._settle)
        self._unsettled_requests += 1
        self._store.append(request)
        return request

    def _report_pauses(self) -> None:
        pauses = [pause for pause in self._pauses if pause >= _SHORT_PAUSE_MS]
        metrics.TOKEN_GAP.observe_many(0.0, len(self._pauses) - len(pauses))
        for pause in pauses:
            metrics.TOKEN_GAP.observe(pause / 1000)
        self._pauses.clear()

    async def wait_for_room(self) -> None:
        """Wait until enough events are committed for the agent to go on, or an append has failed."""
        while self.is_behind and self._failure is None:
            await self._next_change()

    async def flush(self) -> None:
        """Wait until everything appended is committed. Raises StoreError."""
        while self._unsettled_requests:
            await self._next_change()
        if self._failure is not None:
            raise self._failure

    async def suspend(self, until: int) -> None:
        """Commit the last events, and let the turn wait until then (ms) in the same step. Raises StoreError."""
        self._report_pauses()
        if self._failure is None:
            self._open_request().waiting_until = until
        await self.flush()

    async def release(self) -> None:
        """Commit the last events, and queue the turn for another worker in the same step. Raises StoreError."""
        self._report_pauses()
        if self._failure is None:
            self._open_request().release = True
        await self.flush()

    def _open_request(self) -> AppendRequest:
        return self._begin_request() if self._request.is_taken else self._request

    async def end(
        self,
        outcome: Outcome,
        *,
        reason: str | None = None,
        response: ResponseEvent | None = None,
        error: ErrorEvent | None = None,
        joined: Joined | None = None,
    ) -> None:
        """Append the last events in one step and wait until they are committed.

        Raises StoreError, and EventTooLargeError if the response is too large; then nothing is appended.
        """
        self.close()
        if self._failure is not None:
            return await self.flush()  # It raises the failure.
        done = DoneEvent(outcome, self._record.session_id, self.turn_id, reason=reason, joined=joined)
        events = [event for event in (response, error, done) if event is not None]
        last = [log_event(event, self.position + n, self.epoch) for n, event in enumerate(events, start=1)]
        if response is not None:
            self._check_response_size(len(last[0].body))
        request = self._open_request()
        request.events += last
        for logged in last:
            self.fold.add(logged)
        self.position = last[-1].position
        state = request.ending = self.fold.state()
        await self.flush()
        self._report_pauses()
        metrics.note_ending(outcome, state.timings)

    async def rewind(self) -> None:
        """Return to the last committed event, after a failure of the store. Raises StoreError, TurnEndedError.

        The log itself is read: an append that was reported as failed may have been committed. Raises LogRewoundError or
        TurnNotFoundError if the database has lost what it had committed.
        """
        # After an error other than that of an append, events may still be on their way to the store.
        while self._unsettled_requests:
            await self._next_change()
        position = self._committed - 1
        while events := await self._store.read(self.turn_id, position, PAGE):
            position = events[-1].position
            if events[-1].is_last:
                raise TurnEndedError(self.turn_id)
        if position < self._committed:
            raise LogRewoundError(self.turn_id)
        self._committed = position
        await self.restore()
        self.position, self._failure = self._committed, None

    def _settle(self, count: int, error: Refusal | None) -> None:
        self._unsettled_requests -= 1
        if self.ended and self._request.is_taken:
            self._request = _NO_REQUEST  # It refers to this log, which is freed without the garbage collector.
        if error is None:
            self._committed += count
        elif self._failure is None:
            self._failure, self._free_until = error, 0
            if isinstance(error, FencedError):
                metrics.FENCED.add()
            if self._on_failure is not None and not self.ended:
                self._on_failure(error)
        self.is_behind = self.position - self._committed > self._limits.max_uncommitted_events
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _next_change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()
