"""Turns that append events as fast as a store commits them, without wire and socket."""

import asyncio
import time

from bench import measure
from bench.processes import SERVER_CORE, BenchError
from bench.results import Sample
from turnwire.core.contracts.stores import Admission, NewTurn, Store
from turnwire.core.ids import new_id
from turnwire.core.log.codec import now_ms
from turnwire.core.log.turn_log import TurnLog, opening_events
from turnwire.core.log.turns import TurnRecord, new_session
from turnwire.core.people.budget import Limits

TURNS = 200
_TOKEN = "twelve chars"


async def write_all_turns(store: Store, tokens: int) -> Sample:
    """Append `tokens` tokens to each of many turns at once and return the cost of an event."""
    await store.open()
    try:
        await store.renew("bench")
        records = [await claimed_turn(store) for _ in range(TURNS)]
        yardstick = measure.Yardstick(SERVER_CORE)
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(_write_turn(TurnLog(store, record, Limits()), tokens) for record in records))
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
        for turn in records:
            if (await store.find_turn("bench", turn.id)).last_position != tokens + 3:
                raise BenchError(f"the log of turn {turn.id} is incomplete")
    finally:
        await store.close()
    events = TURNS * (tokens + 1)
    return {
        "events_per_second": events / seconds,
        "us_per_event": used / events * 1e6,
        **yardstick.result(),
    }


async def claimed_turn(store: Store) -> TurnRecord:
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


async def _write_turn(log: TurnLog, tokens: int) -> None:
    for _ in range(tokens):
        log.append_token(_TOKEN)
        if log.is_behind:
            await log.wait_for_room()
        await asyncio.sleep(0)
    await log.end("completed")
