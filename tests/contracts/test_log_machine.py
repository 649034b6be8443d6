"""A random walk over every store, compared with a plain model of logs.

Turns are started, claimed, written and ended; readers come, go and come back; the process crashes and is opened again;
old logs are sealed and expired. After every step, every reader has exactly the events of the model.
"""

import asyncio
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contracts.stores import STORES, StoreBackend
from tests.contracts.turns import BOUND, append, done, positions, queued_turns, started, types, whole_log
from tests.examples import examples
from turnwire.core.contracts.stores import AppendRequest, Store
from turnwire.core.errors import EventsGoneError, FencedError, PositionError, TurnEndedError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.follow import Follower
from turnwire.core.log.turns import TurnRecord

T = TypeVar("T")
FAR_FUTURE = 2**45
picks = st.integers(min_value=0, max_value=1_000)


class ModelTurn:
    """The expected state of a turn."""

    def __init__(self, record: TurnRecord, log: list[LoggedEvent]) -> None:
        self.record = record
        self.log = log
        self.epoch = 0
        self.has_owner = False
        self.has_ended = False
        self.first_kept = 1

    def tokens(self, count: int) -> list[TokenEvent]:
        return [TokenEvent(f"{self.epoch}:{len(self.log) + number}") for number in range(count)]


class Reader:
    """A follower of a turn; `seen` survives reconnecting."""

    def __init__(self, turn: ModelTurn, after: int) -> None:
        self.turn = turn
        self.after = after
        self.seen: list[LoggedEvent] = []
        self.failure: Exception | None = None
        self.follower: Follower | None = None
        self.changed = asyncio.Event()

    def open(self, store: Store) -> None:
        position = self.after + len(self.seen)
        self.follower = Follower(store, self.turn.record.id, position, self._take, self._fail)

    def close(self) -> None:
        if self.follower is not None:
            self.follower.close()
            self.follower = None

    async def caught_up(self) -> None:
        while self.follower is not None and self.after + len(self.seen) < len(self.turn.log):
            self.changed.clear()
            await self.changed.wait()

    def _take(self, events: Sequence[LoggedEvent], is_last: bool) -> None:
        self.seen += events
        self.changed.set()

    def _fail(self, error: Exception) -> None:
        self.failure, self.follower = error, None
        self.changed.set()


class LogMachine(RuleBasedStateMachine):
    backend_type: type[StoreBackend]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.backend = self.backend_type(Path(self.folder.name))
        self.store = self.run(self.backend.open())
        self.worker = new_id()
        self.turns: list[ModelTurn] = []
        self.readers: list[Reader] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(BOUND):
                return await coroutine

        return self.loop.run_until_complete(bounded())

    def teardown(self) -> None:
        async def close() -> None:
            for reader in self.readers:
                reader.close()
            await self.backend.close()

        self.run(close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    def refused(self, turn: ModelTurn, epoch: int, position: int) -> Exception | None:
        try:
            self.run(append(self.store, turn.record.id, epoch, position, TokenEvent("wrong")))
        except (FencedError, PositionError, TurnEndedError) as error:
            return error
        return None

    # Turns

    @rule()
    def start(self) -> None:
        record = self.run(started(self.store))
        log = self.run(whole_log(self.store, record.id))
        assert types(log) == ["session", "message"]
        self.turns.append(ModelTurn(record, log))

    @precondition(lambda self: self.turns)
    @rule(pick=picks)
    def claim(self, pick: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        self.run(self.store.renew(self.worker))
        try:
            claimed = self.run(self.store.claim(turn.record.id, self.worker))
        except TurnEndedError:
            assert turn.has_ended
            return
        assert not turn.has_ended
        assert (claimed.epoch, claimed.last_position) == (turn.epoch + 1, len(turn.log))
        turn.epoch, turn.has_owner = claimed.epoch, True

    @property
    def writable(self) -> list[ModelTurn]:
        return [turn for turn in self.turns if turn.has_owner and not turn.has_ended]

    @precondition(lambda self: self.writable)
    @rule(pick=picks, count=st.integers(1, 4))
    def append(self, pick: int, count: int) -> None:
        turn = self.writable[pick % len(self.writable)]
        turn.log += self.run(append(self.store, turn.record.id, turn.epoch, len(turn.log) + 1, *turn.tokens(count)))

    @precondition(lambda self: len(self.writable) > 1)
    @rule(count=st.integers(1, 3))
    def append_to_all_at_once(self, count: int) -> None:
        async def append_all() -> None:
            written = await asyncio.gather(
                *(
                    append(self.store, turn.record.id, turn.epoch, len(turn.log) + 1, *turn.tokens(count))
                    for turn in self.writable
                )
            )
            for turn, events in zip(self.writable, written, strict=True):
                turn.log += events

        self.run(append_all())

    @precondition(lambda self: self.writable)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        turn = self.writable[pick % len(self.writable)]
        turn.log += self.run(
            append(self.store, turn.record.id, turn.epoch, len(turn.log) + 1, done(turn.record), end=True)
        )
        turn.has_ended = True

    @precondition(lambda self: self.turns)
    @rule(pick=picks, behind=st.integers(1, 3))
    def append_as_a_zombie(self, pick: int, behind: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        if turn.epoch - behind >= 0:
            error = self.refused(turn, turn.epoch - behind, len(turn.log) + 1)
            assert isinstance(error, FencedError) or (turn.has_ended and isinstance(error, TurnEndedError))

    @precondition(lambda self: self.turns)
    @rule(pick=picks, shift=st.sampled_from([-2, -1, 0, 2]))
    def append_at_a_wrong_position(self, pick: int, shift: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        error = self.refused(turn, turn.epoch, max(1, len(turn.log) + shift))
        assert isinstance(error, TurnEndedError if turn.has_ended else PositionError)

    # Readers

    @precondition(lambda self: self.turns)
    @rule(pick=picks, position=picks)
    def follow(self, pick: int, position: int) -> None:
        turn = self.turns[pick % len(self.turns)]
        self.readers.append(Reader(turn, position % (len(turn.log) + 1)))
        self.reopen(self.readers[-1])

    @precondition(lambda self: self.readers)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        self.readers[pick % len(self.readers)].close()

    @precondition(lambda self: any(reader.follower is None for reader in self.readers))
    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        dropped = [reader for reader in self.readers if reader.follower is None]
        self.reopen(dropped[pick % len(dropped)])

    def reopen(self, reader: Reader) -> None:
        async def open_and_catch_up() -> None:
            reader.open(self.store)
            await reader.caught_up()

        self.run(open_and_catch_up())
        if reader.failure is not None:
            assert isinstance(reader.failure, EventsGoneError)
            assert reader.after + len(reader.seen) + 1 < reader.turn.first_kept == reader.failure.first_kept
            self.readers.remove(reader)

    # The process and its maintenance

    @precondition(lambda self: self.turns)
    @rule(pick=picks, in_flight=st.integers(0, 3), pause=st.booleans())
    def crash(self, pick: int, in_flight: int, pause: bool) -> None:
        turn = self.turns[pick % len(self.turns)]
        events: list[LoggedEvent] = []

        async def crash() -> None:
            for reader in self.readers:
                reader.close()
            if turn in self.writable:
                tokens = turn.tokens(in_flight)
                events.extend(log_event(token, len(turn.log) + n, turn.epoch) for n, token in enumerate(tokens, 1))
                for event in events:
                    self.store.append(AppendRequest(turn.record.id, turn.epoch, [event], lambda count, error: None))
            if pause:
                await asyncio.sleep(0)
            self.backend.crash()
            self.store = await self.backend.open()

        self.run(crash())
        log = self.run(whole_log(self.store, turn.record.id, max(0, turn.first_kept - 1)))
        survived = log[len(turn.log) - turn.first_kept + 1 :]
        assert survived == events[: len(survived)]
        turn.log += survived
        self.worker = new_id()
        for lost in self.turns:
            lost.has_owner = False

    @rule()
    def recover(self) -> None:
        orphans = {
            turn.record.id: turn for turn in self.turns if turn.epoch and not turn.has_owner and not turn.has_ended
        }
        self.run(self.store.renew(self.worker))
        taken = self.run(self.store.take_over(self.worker))
        assert sorted(record.id for record in taken) == sorted(orphans)
        for record in taken:
            turn = orphans[record.id]
            assert (record.epoch, record.last_position) == (turn.epoch + 1, len(turn.log))
            turn.epoch, turn.has_owner = record.epoch, True

    @rule(expire=st.booleans())
    def maintain(self, expire: bool) -> None:
        self.run(self.store.maintain(expire_before=FAR_FUTURE if expire else 0))
        for turn in self.turns:
            if turn.has_ended and expire:
                turn.first_kept = len(turn.log)

    # Invariants

    @invariant()
    def readers_have_an_exact_slice_of_the_log(self) -> None:
        for reader in self.readers:
            self.run(reader.caught_up())
            start = reader.after
            assert reader.failure is None
            assert reader.seen == reader.turn.log[start : start + len(reader.seen)]
            if reader.follower is not None:
                assert start + len(reader.seen) == len(reader.turn.log)

    @invariant()
    def logs_equal_the_model(self) -> None:
        for turn in self.turns:
            log = self.run(whole_log(self.store, turn.record.id, turn.first_kept - 1, page=50))
            assert log == turn.log[turn.first_kept - 1 :]
            assert positions(log) == list(range(turn.first_kept, len(turn.log) + 1))
            epochs = [logged.epoch for logged in log]
            assert epochs == sorted(epochs)
            assert [logged.is_last for logged in turn.log] == [False] * (len(turn.log) - 1) + [turn.has_ended]

    @invariant()
    def queued_turns_are_the_unclaimed_ones(self) -> None:
        waiting = [turn.record.id for turn in self.turns if turn.epoch == 0]
        assert [record.id for record in self.run(queued_turns(self.store))] == waiting


def machine(name: str) -> Any:
    walk = type(f"{name.title()}LogMachine", (LogMachine,), {"backend_type": STORES[name]})
    case: Any = walk.TestCase
    # A walk over a database server takes longer.
    case.settings = settings(
        max_examples=examples(5 if name == "postgres" else 12),
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return pytest.mark.postgres(case) if name == "postgres" else case


for _name in STORES:
    globals()[f"Test{_name.title()}Log"] = machine(_name)
