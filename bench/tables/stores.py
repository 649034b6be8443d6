"""How many events a second a store commits, of many turns at once, with no wire and no socket.

The agents speak as fast as the store lets them. PostgreSQL runs on this machine, with `fsync` and
`synchronous_commit` as they are when nobody changes them, and has the cores with us.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import measure
from bench.plan import RATE, Plan, record
from bench.results import Column, Sample, Table
from bench.running import SERVER_CORE, BenchError
from tests.postgres_server import PostgresServer
from turnwire.core.contracts import Admission, NewTurn, Store
from turnwire.core.ids import new_id
from turnwire.core.limits import Limits
from turnwire.core.log import TurnLog, opening_events
from turnwire.core.logged import now_ms
from turnwire.core.sessions import new_session
from turnwire.core.turns import TurnRecord
from turnwire.stores.memory import MemoryStore
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteStore

TURNS = 200
_TOKEN = "twelve chars"


def stores(plan: Plan) -> Table:
    table = Table(
        "stores",
        f"{TURNS} turns at once, committed as fast as the store takes them",
        RATE,
        against=("sqlite",),
        others=(Column("us_per_event", "our CPU µs/event", 2),),
        subject="store",
    )
    names = plan.of("memory", "sqlite", "postgres")
    server = PostgresServer() if "postgres" in names else None
    try:
        for _ in range(plan.scale.repeats):
            for name in names:
                with TemporaryDirectory(prefix="bench-") as folder:
                    store = _store(name, Path(folder), server)
                    record(table, f"{TURNS} turns", name, asyncio.run(speak_all(store, plan.scale.tokens)))
    finally:
        if server is not None:
            server.remove()
    return table


def _store(name: str, folder: Path, server: PostgresServer | None) -> Store:
    if name == "memory":
        return MemoryStore()
    if name == "sqlite":
        return SqliteStore(folder)
    assert server is not None
    return PostgresStore(server.url(server.new_database()))


async def speak_all(store: Store, tokens: int) -> Sample:
    await store.open()
    try:
        await store.renew("bench")
        records = [await _claimed(store) for _ in range(TURNS)]
        yardstick = measure.yardstick(SERVER_CORE)
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(_speak(TurnLog(store, record, Limits()), tokens) for record in records))
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
        for turn in records:
            if (await store.find_turn("bench", turn.id)).last_position != tokens + 3:
                raise BenchError(f"the log of turn {turn.id} is not whole")
    finally:
        await store.close()
    events = TURNS * (tokens + 1)
    return {
        "events_per_second": events / seconds,
        "us_per_event": used / events * 1e6,
        "yardstick_ms": (yardstick + measure.yardstick(SERVER_CORE)) / 2,
    }


async def _claimed(store: Store) -> TurnRecord:
    session = new_session("bench")
    turn = TurnRecord(
        id=new_id(),
        session_id=session.id,
        principal="bench",
        agent="bench",
        message="speak",
        last_position=2,
        created_at=now_ms(),
    )
    new = NewTurn(record=turn, opening=opening_events(turn, "bench"), session=session)
    await store.create_turn(new, Admission(max_unfinished=TURNS))
    return await store.claim(turn.id, "bench")


async def _speak(log: TurnLog, tokens: int) -> None:
    for _ in range(tokens):
        log.append_token(_TOKEN)
        if log.is_behind:
            await log.room()
        await asyncio.sleep(0)
    await log.end("completed")
