"""The write side of one turn's log, over a store that commits only when the test says so."""

import asyncio
from typing import Any

import pytest
from hypothesis import given

from tests.contracts.turns import BOUND, positions, types
from tests.core.desk import settle as run_loop
from tests.core.samples import texts
from turnwire.core.contracts.stores import AppendRequest, Refusal
from turnwire.core.errors import (
    EventRefusedError,
    EventTooLargeError,
    StoreFullError,
    TooManyEventsError,
    TurnEndedError,
)
from turnwire.core.log.codec import LoggedEvent, encode_event
from turnwire.core.log.events import CustomEvent, ErrorEvent, ResponseEvent, StatusEvent, TokenEvent
from turnwire.core.log.turn_log import TurnLog, opening_events
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits

RECORD = TurnRecord(id="t1", session_id="s1", principal="ann", agent="echo", message="hello", epoch=1, last_position=2)


class ManualStore:
    """A store that commits only when the test calls `commit`."""

    def __init__(self) -> None:
        self.committed = list(opening_events(RECORD, "ann"))
        self.waiting: list[AppendRequest] = []
        self.taken: list[AppendRequest] = []

    def append(self, request: AppendRequest) -> None:
        self.waiting.append(request)

    async def read(self, turn_id: str, after: int, limit: int) -> list[LoggedEvent]:
        return self.committed[after : after + limit]

    def take(self) -> None:
        """Begin a commit: from here on, the writer must use another request."""
        for request in self.waiting:
            request.is_taken = True
        self.taken += self.waiting
        self.waiting = []

    def commit(self, error: Refusal | None = None) -> None:
        self.take()
        taken, self.taken = self.taken, []
        for request in taken:
            if error is None:
                self.committed += request.events
            request.settle(len(request.events), error)


def open_log(store: ManualStore, on_failure: Any = None, **limits: Any) -> TurnLog:
    return TurnLog(store, RECORD, Limits(**limits), on_failure)  # type: ignore[arg-type]


@given(texts)
def test_append_token_writes_the_same_as_append(text: str) -> None:
    store = ManualStore()
    log = open_log(store)
    log.append_token(text)
    log.append(TokenEvent(text))
    store.commit()
    event, body = encode_event(TokenEvent(text))
    assert [logged.body for logged in store.committed[2:]] == [body, body]
    assert log.fold.text == event.content * 2  # type: ignore[union-attr]


async def test_events_of_one_loop_iteration_are_appended_in_one_step() -> None:
    store = ManualStore()
    log = open_log(store)
    for number in range(5):
        log.append(TokenEvent(str(number)))
    log.append(StatusEvent("busy"))
    (request,) = store.waiting
    assert positions(request.events) == [3, 4, 5, 6, 7, 8]
    assert request.ending is None


async def test_event_after_the_store_has_taken_the_request_begins_another_one() -> None:
    store = ManualStore()
    log = open_log(store)
    for write in (lambda: log.append(StatusEvent("busy")), lambda: log.append_token("text")):
        write()
        (request,) = store.waiting
        store.take()
        write()
        (next_request,) = store.waiting
        assert len(request.events) == len(next_request.events) == 1
        assert next_request.events[0].position == request.events[0].position + 1
        store.commit()


async def test_end_appends_the_buffered_events_too() -> None:
    store = ManualStore()
    log = open_log(store)
    log.append(TokenEvent("first"))
    store.take()
    log.append(TokenEvent("second"))
    ending = asyncio.create_task(log.end("completed", response=ResponseEvent("firstsecond")))
    await run_loop()
    assert not ending.done(), "the end must wait until it is committed"
    (first,), (last,) = store.taken, store.waiting
    state = last.ending
    assert positions([*first.events, *last.events]) == [3, 4, 5, 6]
    assert types(last.events) == ["token", "response", "done"]
    assert state is not None
    assert (state.text, state.outcome, state.position) == ("firstsecond", "completed", 6)
    store.commit()
    async with asyncio.timeout(BOUND):
        await ending


async def test_append_after_the_end_is_refused() -> None:
    store = ManualStore()
    log = open_log(store)
    ending = asyncio.create_task(log.end("completed"))
    await run_loop()
    for write in (lambda: log.append(StatusEvent("late")), lambda: log.append_token("late")):
        with pytest.raises(TurnEndedError):
            write()
    store.commit()
    await ending
    assert types(store.committed) == ["session", "message", "done"]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (TokenEvent("x" * 2_000), EventTooLargeError),
        (TokenEvent("é" * 400), EventTooLargeError),
        (StatusEvent("x" * 2_000), EventTooLargeError),
        (TokenEvent(None), EventRefusedError),  # type: ignore[arg-type]
        (CustomEvent(5), EventRefusedError),  # type: ignore[arg-type]
    ],
    ids=["long token", "escaped token", "long status", "no text", "wrong type"],
)
async def test_refused_event_leaves_no_gap(refused: Any, error: type[Exception]) -> None:
    store = ManualStore()
    log = open_log(store, max_event_bytes=1_000)
    log.append(TokenEvent("before"))
    with pytest.raises(error):
        log.append(refused)
    log.append(TokenEvent(" after"))
    store.commit()
    assert positions(store.committed) == [1, 2, 3, 4]
    assert log.fold.text == "before after"


async def test_event_limit_does_not_count_the_end() -> None:
    store = ManualStore()
    log = open_log(store, max_events_per_turn=4)
    log.append(TokenEvent("three"))
    log.append(StatusEvent("four"))
    for write in (lambda: log.append(StatusEvent("five")), lambda: log.append_token("five")):
        with pytest.raises(TooManyEventsError):
            write()
    ending = asyncio.create_task(log.end("failed", error=ErrorEvent("too many", "too_many_events")))
    await run_loop()
    store.commit()
    await ending
    assert positions(store.committed) == [1, 2, 3, 4, 5, 6]


async def test_writer_ahead_of_the_store_waits_for_the_commit() -> None:
    store = ManualStore()
    log = open_log(store, max_uncommitted_events=2)
    for number in range(3):
        assert not log.is_behind
        log.append(TokenEvent(str(number)))
    assert log.is_behind
    waiting = asyncio.create_task(log.wait_for_room())
    store.take()
    await run_loop()
    assert not waiting.done(), "handed over is not committed"
    store.commit()
    async with asyncio.timeout(BOUND):
        await waiting
    assert not log.is_behind


async def test_writer_waits_while_too_much_is_uncommitted_after_a_commit() -> None:
    store = ManualStore()
    log = open_log(store, max_uncommitted_events=2)
    log.append(TokenEvent("first"))
    store.take()
    for number in range(3):
        log.append(TokenEvent(str(number)))
    (request,) = store.taken
    request.settle(len(request.events), None)
    assert log.is_behind


async def test_store_failure_is_reported_once_and_stops_the_writing() -> None:
    store = ManualStore()
    failures: list[Refusal] = []
    log = open_log(store, failures.append, max_uncommitted_events=1)
    log.append(TokenEvent("a"))
    store.take()
    log.append(TokenEvent("b"))
    waiting = asyncio.create_task(log.wait_for_room())
    error = StoreFullError()
    store.commit(error)
    async with asyncio.timeout(BOUND):
        await waiting
    assert failures == [error]
    for write in (lambda: log.append(StatusEvent("c")), lambda: log.append_token("c")):
        with pytest.raises(StoreFullError):
            write()


async def test_end_after_a_failure_follows_the_committed_events() -> None:
    store = ManualStore()
    log = open_log(store, lambda error: None)
    log.append(TokenEvent("kept"))
    store.commit()
    log.append(TokenEvent(" lost"))
    store.commit(StoreFullError())
    with pytest.raises(StoreFullError):
        await log.end("completed", response=ResponseEvent("kept lost"))
    await log.rewind()
    ending = asyncio.create_task(log.end("failed", error=ErrorEvent("full", "disk_full")))
    await run_loop()
    (state,) = [request.ending for request in store.waiting]
    store.commit()
    await ending
    assert types(store.committed) == ["session", "message", "token", "error", "done"]
    assert positions(store.committed) == [1, 2, 3, 4, 5]
    assert state is not None
    assert (state.text, state.outcome, state.position) == ("kept", "failed", 5)


@pytest.mark.parametrize("is_taken", [False, True])
async def test_rewind_waits_for_events_that_are_not_committed_yet(is_taken: bool) -> None:
    store = ManualStore()
    log = open_log(store, max_response_bytes=100)
    log.append(TokenEvent("kept"))
    if is_taken:
        store.take()
    with pytest.raises(EventTooLargeError):
        await log.end("completed", response=ResponseEvent("x" * 200))
    rewinding = asyncio.create_task(log.rewind())
    await run_loop()
    store.commit()
    await rewinding
    ending = asyncio.create_task(log.end("failed", error=ErrorEvent("too large", "event_too_large")))
    await run_loop()
    store.commit()
    await ending
    assert types(store.committed) == ["session", "message", "token", "error", "done"]
    assert positions(store.committed) == [1, 2, 3, 4, 5]


async def test_restored_log_is_folded_from_its_beginning() -> None:
    store = ManualStore()
    first = open_log(store)
    first.append(TokenEvent("half"))
    store.commit()
    second = TurnLog(store, RECORD, Limits())  # type: ignore[arg-type]
    await second.restore()
    state = second.fold.state()
    assert (state.message, state.text, state.position) == ("hello", "half", 3)
