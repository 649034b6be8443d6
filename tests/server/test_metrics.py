"""`/metrics` and `/v1/workers`: counts match events, and need the `operate` scope."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contracts.stores import at_once
from tests.contracts.turns import queued_turns
from tests.server.conftest import Serve
from tests.server.test_auth import holder
from tests.server.test_slow_readers import LONG, PIECE, all_blocked, stalled_readers
from tests.serving import PATIENCE, Puppet, Served, error_of, let_time_pass, until
from turnwire.core.log.events import StatusEvent
from turnwire.core.log.turns import Turn

Numbers = dict[str, float]


def is_queued(server: Served) -> bool:
    return bool(at_once(queued_turns(server.turnwire.store)))


async def scraped(server: Served) -> Numbers:
    """Every sample by its name and labels, read by Prometheus's own parser."""
    answer = await server.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    numbers: Numbers = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            labels = "".join(f"[{value}]" for name, value in sample.labels.items() if name != "version")
            numbers[sample.name + labels] = sample.value
    return numbers


def total(numbers: Numbers, prefix: str) -> float:
    return sum(value for name, value in numbers.items() if name.startswith(prefix))


def change(before: Numbers, after: Numbers) -> Any:
    return lambda name: after[name] - before[name]


@pytest.mark.one_store("it reads the store without an event loop")
async def test_metrics_count_turns_commits_and_readers(
    serve: Serve, puppet: Puppet, errors_in_the_log: list[str]
) -> None:
    errors_in_the_log.append("the agent 'default' failed")
    async with serve(store="sqlite") as server:
        before = await scraped(server)
        async with server.ask(session_id="one") as stream:
            part = await puppet.part()
            queued = asyncio.create_task(server.http.post("/chat", json={"message": "and?", "session_id": "one"}))
            await until(lambda: is_queued(server))
            during = await scraped(server)
            assert (during["turnwire_turns_running"], during["turnwire_turns_queued"]) == (1, 1)
            assert during["turnwire_readers_open"] == 1
            for word in ("One ", "by ", "one."):
                part.say(word)
                await stream.until("token")
            part.end()
            done = (await stream.rest())[-1]
        (await puppet.part()).end(RuntimeError("on purpose"))
        assert (await queued).status_code == 500
        async with server.ask() as stream:
            await puppet.part()
            assert (await server.http.post(f"/v1/turns/{stream.turn_id}/cancel")).status_code == 200
        async with server.events(stream.turn_id, after=2) as again:
            await again.rest()
        changed = change(before, await scraped(server))
        assert done.event["outcome"] == "completed"
        for outcome, count in {"completed": 1, "failed": 1, "cancelled": 1, "interrupted": 0}.items():
            assert changed(f"turnwire_turns_total[{outcome}]") == count
        assert changed("turnwire_turn_seconds_count") == 3
        assert changed("turnwire_first_token_seconds_count") == 1
        assert changed("turnwire_first_token_delivered_seconds_count") == 1
        after = await scraped(server)
        for name, count in (("stream_first_token_seconds", 1), ("stream_seconds", 3)):
            prefix = f"turnwire_{name}_count[sse_chat]"  # By route, too.
            assert total(after, prefix) - total(before, prefix) == count
        assert changed("turnwire_token_gap_seconds_count") == 2
        assert changed("turnwire_cancel_seconds_count") == 1
        assert changed("turnwire_stream_resumes_total") == 1
        assert changed("turnwire_commit_seconds_count") >= 8
        # All but the two that each turn begins with, which the store commits when it accepts it.
        assert changed("turnwire_commit_events_sum") == 3 + 2 + 2 + 1
        assert (await scraped(server))[f"turnwire_worker_info[{server.turnwire.runner.worker.id}]"] == 1


async def test_gaps_and_slow_readers_are_counted(serve: Serve, puppet: Puppet) -> None:
    async with serve(store="memory", write_timeout=LONG) as server:
        before = await scraped(server)
        turn_id = await server.start()
        part = await puppet.part()
        async with stalled_readers(server, f"/v1/turns/{turn_id}/events", 1):
            await until(lambda: server.turnwire.streams.open_count == 1)
            part.say(*(StatusEvent(PIECE) for _ in range(2_000)))
            await all_blocked(server, 1)
            let_time_pass(server.turnwire, LONG)
            await until(lambda: server.turnwire.streams.open_count == 0)
        part.end()
        await server.ended(turn_id)
        await server.turnwire.store.maintain(expire_before=10**15)
        assert (await server.whole(turn_id))[0].type == "gap"
        gone = await server.http.get(f"/v1/turns/{turn_id}/events", params={"wire": "three_phase_text"})
        assert gone.status_code == 410
        changed = change(before, await scraped(server))
        assert changed("turnwire_slow_readers_closed_total") == 1
        assert changed("turnwire_stream_gaps_total") == 2


# Who may read them


async def test_metrics_and_workers_need_the_operate_scope(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        assert (await server.http.get("/metrics")).status_code == 200  # No key yet, and it is this machine.
        async with holder(server, "anna") as anna, holder(server, "ops", ("read", "operate")) as ops:
            error_of(await server.http.get("/metrics"), 401)
            error_of(await anna.http.get("/metrics"), 403)
            assert (await ops.http.get("/metrics")).status_code == 200
            turn_id = await anna.start("in private")
            (worker,) = (await ops.http.get("/v1/workers")).json()["workers"]
            assert (worker["id"], worker["draining"]) == (server.turnwire.runner.worker.id, False)
            everything = (await ops.http.get("/v1/workers")).json()
            assert [(turn["turn_id"], turn["principal"]) for turn in everything["turns"]] == [(turn_id, "anna")]
            assert "in private" not in str(everything)
            own = (await anna.http.get("/v1/workers")).json()
            assert own["workers"] == []
            assert [turn["turn_id"] for turn in own["turns"]] == [turn_id]
            async with holder(server, "bob") as bob:
                assert (await bob.http.get("/v1/workers")).json() == {"workers": [], "turns": []}


async def test_open_metrics_opens_only_the_metrics(serve: Serve) -> None:
    async with serve(open_metrics=True) as server, holder(server):
        assert (await server.http.get("/metrics")).status_code == 200
        error_of(await server.http.get("/v1/workers"), 401)


async def test_turn_and_line_that_blocked_the_event_loop_are_in_the_metrics(serve: Serve) -> None:
    reported = threading.Event()

    class Reports(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "(blocking)" in record.getMessage():
                reported.set()

    async def blocking(turn: Turn) -> str:
        deadline = time.monotonic() + PATIENCE
        while not reported.is_set() and time.monotonic() < deadline:
            pass
        return "done"

    reports = Reports()
    logging.getLogger("turnwire.server").addHandler(reports)
    try:
        async with serve(blocking) as server:
            assert (await scraped(server))["turnwire_loop_last_block_seconds[][]"] == 0
            turn_id = await server.start("hello")
            await server.whole(turn_id)
            async with asyncio.timeout(PATIENCE):
                while not (blocks := await blocks_of(server, turn_id)):
                    pass
    finally:
        logging.getLogger("turnwire.server").removeHandler(reports)
    ((name, seconds),) = blocks.items()
    assert f"[{__file__}:" in name
    assert seconds >= 1


async def blocks_of(server: Served, turn_id: str) -> Numbers:
    numbers = await scraped(server)
    return {name: value for name, value in numbers.items() if f"last_block_seconds[{turn_id}]" in name}
