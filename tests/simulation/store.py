"""A model of the shared store: one memory store as the database, and one client of it for each process.

A call travels to the database and back. On the way it may be late, lost, or applied with its answer lost. Wake-ups are
hints, as `LISTEN` and `NOTIFY` are: late, doubled, or lost with a connection, after which everything is woken.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from tests.simulation.ledger import Ledger
from tests.simulation.loop import Process, SimulatedLoop
from turnwire.core.contracts.stores import AppendRequest, Refusal, Wake
from turnwire.core.errors import StoreAwayError, StoreError
from turnwire.core.log.codec import LoggedEvent
from turnwire.stores.memory import MemoryStore
from turnwire.stores.rules import Watchers

_ANSWER_SECONDS = 3.0


class FaultRates(Struct):
    """The shares of calls, commits and wake-ups that a fault hits. All are 0 once the faults have healed."""

    fail: float = 0.0
    lose_answer: float = 0.0
    slow: float = 0.0
    lose_wake: float = 0.0


class Database:
    """The one truth. Everything that it does is checked by the ledger, in the order in which it does it."""

    def __init__(self, loop: SimulatedLoop, chooser: random.Random, lease: float, trace: Callable[..., None]) -> None:
        self.loop = loop
        self.chooser = chooser
        self.rates = FaultRates()
        self.trace = trace
        self.process = loop.add_process("database")
        self.engine = MemoryStore(lease=lease, clock=loop.time, commit_interval=0)
        self.ledger = Ledger(lease, loop.time)

    def delay(self) -> float:
        chooser = self.chooser
        if chooser.random() < self.rates.slow:
            return chooser.uniform(0.05, 1.5)
        return chooser.uniform(0.0005, 0.004)


class ProcessStore:
    """The store as one process has it."""

    is_shared = True

    def __init__(self, database: Database, process: Process) -> None:
        self.is_cut = False
        """Whether the network between the process and the database is down."""
        self._database = database
        self._process = process
        self._loop = database.loop
        self._watchers = Watchers()
        self._watched: dict[str, tuple[int, Callable[[], None]]] = {}
        self._waiting: list[AppendRequest] = []
        self._committing: set[str] = set()
        self._is_writing = False
        self._held: list[Callable[[], None]] = []
        self._settled = asyncio.Event()
        self._wakes_all = False

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # The network

    def _send(self, action: Callable[[], None], context: Any) -> None:
        """Do something at the other end of the connection after the delay, or when the connection is back."""
        self._loop.call_later(self._database.delay(), self._arrive, action, context, context=context)

    def _arrive(self, action: Callable[[], None], context: Any) -> None:
        if self.is_cut:
            self._held.append(lambda: self._send(action, context))
        else:
            action()

    def mend(self) -> None:
        """Restore the connection: what TCP holds goes on, and everything is woken."""
        self.is_cut = False
        held, self._held = self._held, []
        for send in held:
            send()
        self._wake_all_soon()

    # Calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._database.engine, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._call(name, method, arguments, named)

        setattr(self, name, call)
        return call

    async def _call(self, name: str, method: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        database = self._database
        if name == "claim":
            await self._wait_for_appends(arguments[0])
        answer = self._loop.create_future()
        give_up = self._loop.call_later(_ANSWER_SECONDS, self._fail, answer, StoreAwayError("no answer came"))
        rates, chooser = database.rates, database.chooser
        fails, loses = chooser.random() < rates.fail, chooser.random() < rates.lose_answer

        def apply() -> None:
            if fails:
                result, error = None, StoreError(f"{name} was made to fail")
            else:
                result, error = _run(method(*arguments, **named))
                database.trace(self._process.name, name, _brief(arguments), _brief(result), error)
                database.ledger.note_call(name, arguments, named, result, error)
            if loses:
                if chooser.random() < 0.5:
                    return  # Silence.
                error = StoreError(f"the answer to {name} was lost")
            self._send(lambda: self._answer(answer, result, error), self._process.context)

        self._send(apply, database.process.context)
        try:
            return await answer
        finally:
            give_up.cancel()

    def _answer(self, answer: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def _fail(self, answer: "asyncio.Future[Any]", error: Exception) -> None:
        self._answer(answer, None, error)

    async def _wait_for_appends(self, turn_id: str) -> None:
        """Wait for earlier appends of this process to the turn, as the contract of `claim` and one queue promise."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while turn_id in self._committing or any(each.turn_id == turn_id for each in self._waiting):
                    await self._settled.wait()
        except TimeoutError as error:
            raise StoreAwayError("earlier events are not committed") from error

    # Appends: one group at a time, with one request of each turn

    def append(self, request: AppendRequest) -> None:
        self._waiting.append(request)
        if not self._is_writing:
            self._is_writing = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        group: dict[str, AppendRequest] = {}
        later: list[AppendRequest] = []
        for request in self._waiting:
            (later.append(request) if request.turn_id in group else group.setdefault(request.turn_id, request))
        self._waiting = later
        for request in group.values():
            request.is_taken = True
        self._committing = set(group)
        rates, chooser = self._database.rates, self._database.chooser
        # A failed commit often ends its turn, so it is rarer than other failures.
        fails, loses = chooser.random() < rates.fail / 2, chooser.random() < rates.lose_answer / 2
        requests = list(group.values())
        self._before_commit(requests)
        self._send(lambda: self._commit(requests, fails, loses), self._database.process.context)

    def _before_commit(self, requests: list[AppendRequest]) -> None:
        """Do nothing. A mutation publishes here."""

    def _commit(self, requests: list[AppendRequest], fails: bool, loses: bool) -> None:
        database = self._database
        results: list[tuple[AppendRequest, Refusal | None]] = []

        def reply() -> None:
            self._send(lambda: self._finish(results), self._process.context)

        if fails:
            results += [(request, StoreError("the commit was made to fail")) for request in requests]
            reply()
            return
        for request in requests:

            def settle(count: int, error: Refusal | None, request: AppendRequest = request) -> None:
                database.trace(
                    self._process.name, "append", request.turn_id, request.epoch, request.first_position, count, error
                )
                database.ledger.note_append(request, error)
                results.append((request, StoreError("the answer of the commit was lost") if loses else error))
                if len(results) == len(requests):
                    reply()

            fields = {name: getattr(request, name) for name in ("ending", "waiting_until", "release", "entries")}
            copied = AppendRequest(request.turn_id, request.epoch, request.events, settle, **fields)
            database.engine.append(copied)

    def _finish(self, results: Sequence[tuple[AppendRequest, Refusal | None]]) -> None:
        for request, error in results:
            if error is None and request.events:
                self._watchers.notify(request.turn_id, request.events)
            request.settle(len(request.events), error)
        self._committing = set()
        self._settled.set()
        self._settled = asyncio.Event()
        self._is_writing = False
        if self._waiting:
            self._is_writing = True
            self._loop.call_soon(self._write)

    # Wake-ups

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        count, stop = self._watched.get(key, (0, None))
        if stop is None:
            stop = self._database.engine.watch(key, lambda _: self._hint(key))
        self._watched[key] = count + 1, stop
        remove = self._watchers.add(key, wake)
        is_watching = True

        def unwatch() -> None:
            nonlocal is_watching
            if not is_watching:
                return
            is_watching = False
            remove()
            count, stop = self._watched.pop(key)
            if count > 1:
                self._watched[key] = count - 1, stop
            else:
                stop()

        return unwatch

    def _hint(self, key: str) -> None:
        if not self._process.is_alive:
            return
        chooser, rates = self._database.chooser, self._database.rates
        if self.is_cut or chooser.random() < rates.lose_wake:
            self._wake_all_soon()
            return
        for _ in range(2 if chooser.random() < rates.lose_wake else 1):
            self._send(lambda: self._watchers.notify(key, no_events), self._process.context)

    def _wake_all_soon(self) -> None:
        """Wake everything when the loss of the connection has been noticed."""
        if not self._wakes_all:
            self._wakes_all = True
            delay = self._database.chooser.uniform(0.05, 1.0)
            self._loop.call_later(delay, self._wake_all, context=self._process.context)

    def _wake_all(self) -> None:
        self._wakes_all = False
        if self.is_cut:
            self._wake_all_soon()
        else:
            self._watchers.notify_all()


no_events: Sequence[LoggedEvent] = ()


def _run(coroutine: Any) -> tuple[Any, Exception | None]:
    """Run a coroutine of the memory store, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value, None
    except Exception as error:
        return None, error
    raise AssertionError("the memory store has waited")


def _brief(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(_brief(each) for each in value)
    if isinstance(value, str | int | float | bool) or value is None:
        return str(value)
    if isinstance(value, LoggedEvent):
        return f"{value.position}.{value.epoch}"
    record = getattr(value, "record", value)
    return f"{getattr(record, 'id', type(value).__name__)}@{getattr(record, 'epoch', '')}"
