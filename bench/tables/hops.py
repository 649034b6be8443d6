"""The hops of a token, each run by itself in the bench's own process: CPU per event, without the other hops."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bench import measure
from bench.plan import Plan, record
from bench.processes import SERVER_CORE
from bench.results import Column, Table
from bench.store_load import claimed_turn
from turnwire import Turn
from turnwire.core.contracts.stores import AppendRequest, Store
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.follow import Follower, follow
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRequest, TurnRunner
from turnwire.server.auth import Caller
from turnwire.server.streams.connection import StreamConnection
from turnwire.stores.memory import MemoryStore
from turnwire.stores.sqlite import SqliteStore
from turnwire.wires.sse_chat.encoder import SseChat

_TOKENS = 1_000
_LONG = 20_000
_TURNS = 32
_TOKEN = "twelve chars"


def hops(plan: Plan) -> Table:
    table = Table(
        "hops",
        f"The hops of a token, alone, and a commit of {_TURNS} turns with one event each",
        Column("us_per_event", "CPU µs/event", 2),
        subject="part",
    )
    for _ in range(plan.scale.repeats):
        asyncio.run(_measure(table))
    return table


async def _measure(table: Table) -> None:
    for case, hop in (
        ("append: encode, number, fold", _append),
        ("agent, execution, append and large commits", _execute),
        ("commit, memory store", _commit_in_memory),
        ("commit, SQLite store", _commit_in_sqlite),
        ("follow", _follow),
        ("encode for a wire", _encode),
        ("write to the socket", _write),
    ):
        yardstick = measure.Yardstick(SERVER_CORE)
        record(table, case, "turnwire", {"us_per_event": await hop() * 1e6} | yardstick.result())


def _timed(work: Callable[[], object], events: int) -> float:
    """Return the CPU seconds per event of the fastest of some runs."""
    seconds: list[float] = []
    for _ in range(20):
        started = time.thread_time()
        work()
        seconds.append(time.thread_time() - started)
    return min(seconds) / events


class _DeafStore(MemoryStore):
    """A store that commits nothing, so that an append is all that is measured."""

    def append(self, request: AppendRequest) -> None:
        pass


async def _append() -> float:
    store = _DeafStore()
    turn = await claimed_turn(store)

    def work() -> None:
        log = TurnLog(store, turn, Limits())
        for _ in range(_TOKENS):
            log.append_token(_TOKEN)

    return _timed(work, _TOKENS)


async def _execute() -> float:
    """Run whole turns in memory, commits included: at this length, the cost of the turn itself is small."""

    class Agent:
        async def answer(self, turn: Turn) -> AsyncIterator[str]:
            for _ in range(_LONG):
                yield _TOKEN

    store = MemoryStore()
    runner = TurnRunner(store, {"bench": Agent()})
    await runner.open()
    try:
        seconds: list[float] = []
        for _ in range(5):
            started = time.process_time()
            turn = (await runner.start(TurnRequest(principal="bench", message="speak"))).record
            async for _ in follow(store, turn.id):
                pass
            seconds.append(time.process_time() - started)
    finally:
        await runner.close()
    return min(seconds) / _LONG


async def _commit_in_memory() -> float:
    return await _commit(MemoryStore(commit_interval=0))


async def _commit_in_sqlite() -> float:
    with TemporaryDirectory(prefix="bench-") as folder:
        return await _commit(SqliteStore(Path(folder), commit_interval=0))


async def _commit(store: Store) -> float:
    """Return the CPU seconds per event of commits, in all threads."""
    await store.open()
    try:
        await store.renew("bench")
        turns = [await claimed_turn(store) for _ in range(_TURNS)]
        seconds: list[float] = []
        for position in range(3, 203):
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            left = _TURNS

            def settle(count: int, error: object, settled: asyncio.Future[None] = settled) -> None:
                nonlocal left
                left -= 1
                if not left:
                    settled.set_result(None)

            events = [log_event(TokenEvent(_TOKEN), position, turn.epoch) for turn in turns]
            started = time.process_time()
            for turn, event in zip(turns, events, strict=True):
                store.append(AppendRequest(turn.id, turn.epoch, [event], settle))
            await settled
            seconds.append(time.process_time() - started)
    finally:
        await store.close()
    return sorted(seconds)[len(seconds) // 4] / _TURNS


async def _follow() -> float:
    store = MemoryStore()
    turn = await claimed_turn(store)
    follower = Follower(store, turn.id, 0, lambda events, is_last: None, lambda error: None)
    while follower._reading is not None:
        await asyncio.wait([follower._reading])
    groups = [[event] for event in _events(100_000, turn.epoch)]
    follower._epoch = turn.epoch
    remaining = iter(groups)

    def work() -> None:
        for _ in range(_TOKENS):
            follower._on_commit(next(remaining))

    return _timed(work, _TOKENS)


async def _encode() -> float:
    encode, events = SseChat().encoder().frame, _events(_TOKENS, 1)
    return _timed(lambda: [encode(event) for event in events], _TOKENS)


async def _write() -> float:
    """Write chunks to a TCP socket, whose other end is emptied in between."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    logger = logging.getLogger("uvicorn")
    options = (False, [], asyncio.Event(), False, True, lambda: None)
    scope = {"type": "http", "method": "GET"}
    cycle = RequestResponseCycle(scope, transport, FlowControl(transport), logger, logger, *options)  # type: ignore[arg-type]
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    connection = StreamConnection(cycle.send, SseChat(), Caller("bench", ()))  # type: ignore[arg-type]
    frame = SseChat().encoder().frame(_events(1, 1)[0])
    count = 200

    def work() -> None:
        for _ in range(count):
            connection.write(frame)
        theirs.recv(1 << 20)

    try:
        return _timed(work, count)
    finally:
        transport.abort()
        theirs.close()


def _events(count: int, epoch: int) -> Sequence[LoggedEvent]:
    return [log_event(TokenEvent(_TOKEN), position, epoch) for position in range(3, count + 3)]
