"""Tests of the simulation: reproducible, and true to its costs. The table `scale` compares it with a measurement."""

import asyncio
from dataclasses import replace

import pytest

from bench.calibration import SHAPES, calibrate, fitted
from bench.figures import MEASURED, draw_chart
from bench.simulation import Cluster, at_full_speed, database_of, most_turns, simulate
from bench.store_load import TURNS
from bench.tables.scale import predicted
from tests.postgres_server import PostgresServer

MANY = Cluster(workers=4, databases=2, turns=400, elsewhere=0.5, seconds=0.3)


def test_same_seed_gives_the_same_outcome() -> None:
    assert simulate(MANY, MEASURED) == simulate(MANY, MEASURED)
    assert simulate(MANY, MEASURED) != simulate(replace(MANY, seed=2), MEASURED)


def test_calibration_measures_the_costs_of_a_database() -> None:
    server = PostgresServer()
    try:
        costs = asyncio.run(calibrate(server.url(server.new_database()), 2, deliver=100.0))
    finally:
        server.remove()
    assert all(cost >= 0 for cost in vars(costs).values())
    assert costs.speak > 0
    assert costs.hint > 0
    assert costs.flush >= 1
    assert costs.deliver == 100


def test_fit_recovers_the_costs_of_a_commit() -> None:
    commit, commit_turn, commit_event = 313.0, 13.5, 0.1
    shapes = [(turns, turns * each) for turns, each in SHAPES]
    rows = [(1, turns, events, commit + commit_turn * turns + commit_event * events) for turns, events in shapes]
    assert fitted(rows) == pytest.approx([commit, commit_turn, commit_event], rel=0.01)


def test_prediction_of_one_worker_is_the_sum_of_its_costs() -> None:
    outcome = predicted(MEASURED)
    each = MEASURED.speak + MEASURED.encode + MEASURED.group / outcome.events_per_commit
    assert outcome.worker_us == pytest.approx(each, rel=0.1)


def test_events_are_committed_while_there_is_capacity() -> None:
    for turns in (10, 200, 400):
        outcome = simulate(replace(MANY, turns=turns, seconds=1), MEASURED)
        assert 0.9 < outcome.events_per_second / (turns * MANY.rate) < 1.1
        assert 0 < outcome.p50_ms <= outcome.p99_ms


def test_more_load_makes_larger_groups_and_cheaper_events() -> None:
    few, many = (simulate(replace(MANY, turns=turns), MEASURED) for turns in (40, 2_000))
    assert many.events_per_commit > 2 * few.events_per_commit
    assert many.database_us < few.database_us


def test_slower_disk_or_core_lowers_the_outcome() -> None:
    single = Cluster(turns=TURNS, readers=0, seconds=0.5)
    reads = replace(single, readers=1)
    assert simulate(reads, replace(MEASURED, flush=20_000)).p50_ms > 2 * simulate(reads, MEASURED).p50_ms
    slower = replace(MEASURED, speak=2 * MEASURED.speak, encode=2 * MEASURED.encode)
    assert at_full_speed(single, slower).events_per_second < 0.7 * at_full_speed(single, MEASURED).events_per_second


def test_more_databases_carry_more_turns() -> None:
    tight = replace(MEASURED, commit=3_000, commit_turn=100)
    single = Cluster(workers=8, databases=1, seconds=0.2)
    assert most_turns(replace(single, databases=2), tight) > 1.3 * most_turns(single, tight)


def test_new_database_moves_only_its_share_of_sessions() -> None:
    sessions = [f"s{n}" for n in range(4_000)]
    before = [database_of(session, 4) for session in sessions]
    after = [database_of(session, 5) for session in sessions]
    assert max(before.count(n) for n in range(4)) < 1.1 * 1_000
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {4}
    assert 0.16 < len(moved) / len(sessions) < 0.24


def test_chart_is_reproducible() -> None:
    lines = [("one", [(1.0, 10.0), (8.0, 70.0)]), ("two", [(1.0, 20.0), (8.0, 150.0)])]
    picture = draw_chart("Title", "across", "up", lines)
    assert picture == draw_chart("Title", "across", "up", lines)
    assert picture.count("<polyline") == 2
    assert picture.count("<circle") == 4
