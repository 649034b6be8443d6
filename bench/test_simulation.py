"""The simulation: the same for the same seed, right about one database, and fair to many."""

import asyncio
from dataclasses import replace
from statistics import median

from bench.calibration import calibrate
from bench.figures import MEASURED, drawn
from bench.simulation import Cluster, at_full_speed, database_of, most_turns, simulate
from bench.speaking import TURNS, speak_all
from bench.tables.scale import predicted
from tests.postgres_server import PostgresServer
from turnwire.stores.postgres import PostgresStore

FACTOR = 2.0
"""What docs/research/scale.md says of how well they agree."""
MANY = Cluster(workers=4, databases=2, turns=400, elsewhere=0.5, seconds=0.3)


def test_the_same_seed_foresees_the_same() -> None:
    assert simulate(MANY, MEASURED) == simulate(MANY, MEASURED)
    assert simulate(MANY, MEASURED) != simulate(replace(MANY, seed=2), MEASURED)


def test_it_agrees_with_a_measurement_of_one_database_on_the_same_machine() -> None:
    server = PostgresServer()
    try:
        costs = asyncio.run(calibrate(server.url(server.new_database()), 10))
        measured: list[float] = []
        for _ in range(3):
            store = PostgresStore(server.url(server.new_database()))
            measured.append(asyncio.run(speak_all(store, 100))["us_per_event"])
    finally:
        server.remove()
    # By the processor's time, which limits one worker at full speed and holds on a busy machine.
    assert 1 / FACTOR < predicted(costs).worker_us / median(measured) < FACTOR, (costs, measured)


def test_what_is_said_is_committed_while_there_is_room() -> None:
    for turns in (10, 200, 400):
        outcome = simulate(replace(MANY, turns=turns, seconds=1), MEASURED)
        assert 0.9 < outcome.events_per_second / (turns * MANY.rate) < 1.1
        assert 0 < outcome.p50_ms <= outcome.p99_ms


def test_more_load_makes_larger_groups_and_cheaper_events() -> None:
    few, many = (simulate(replace(MANY, turns=turns), MEASURED) for turns in (40, 2_000))
    assert many.events_per_commit > 2 * few.events_per_commit
    assert many.database_us < few.database_us


def test_a_slower_disk_or_a_slower_core_is_foreseen() -> None:
    one = Cluster(turns=TURNS, readers=0, seconds=0.5)
    reads = replace(one, readers=1)
    assert simulate(reads, replace(MEASURED, flush=20_000)).p50_ms > 2 * simulate(reads, MEASURED).p50_ms
    slower = replace(MEASURED, speak=2 * MEASURED.speak, encode=2 * MEASURED.encode)
    assert at_full_speed(one, slower).events_per_second < 0.7 * at_full_speed(one, MEASURED).events_per_second


def test_more_databases_carry_more_turns() -> None:
    tight = replace(MEASURED, commit=3_000, commit_turn=100)
    one = Cluster(workers=8, databases=1, seconds=0.2)
    assert most_turns(replace(one, databases=2), tight) > 1.3 * most_turns(one, tight)


def test_sessions_are_spread_evenly_and_a_new_database_moves_only_its_own() -> None:
    sessions = [f"s{n}" for n in range(4_000)]
    before = [database_of(session, 4) for session in sessions]
    after = [database_of(session, 5) for session in sessions]
    assert max(before.count(n) for n in range(4)) < 1.1 * 1_000
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {4}
    assert 0.16 < len(moved) / len(sessions) < 0.24


def test_a_picture_is_the_same_for_the_same_lines() -> None:
    lines = [("one", [(1.0, 10.0), (8.0, 70.0)]), ("two", [(1.0, 20.0), (8.0, 150.0)])]
    picture = drawn("Title", "across", "up", lines)
    assert picture == drawn("Title", "across", "up", lines)
    assert picture.count("<polyline") == 2
    assert picture.count("<circle") == 4
