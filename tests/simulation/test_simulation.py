"""A short simulation: 500 seeds in pieces, each deterministic, and guards that it misses when they are taken out."""

import subprocess
import sys

import pytest

from tests.examples import examples, runs_all
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.simulation import first_failure, simulate

_PIECE = 50
_MUTATION_SEEDS = 1_000
# Found only after hundreds of seeds.
_RARE = "durable_command"


@pytest.mark.parametrize("first", range(0, examples(500), _PIECE))
def test_simulated_servers_keep_their_promises(first: int) -> None:
    failure = first_failure(_PIECE, first)
    if failure is not None:
        trace = "\n".join(failure.trace[-40:])
        pytest.fail(f"scripts/simulate --seed {failure.seed}\n{failure.broken}\n{trace}")


def test_seed_has_the_same_history_each_time() -> None:
    seeds = range(examples(10))
    first = [simulate(seed).digest for seed in seeds]
    assert [simulate(seed).digest for seed in reversed(seeds)] == first[::-1]
    assert len(set(first)) == len(first)


@pytest.mark.process
def test_seed_has_the_same_history_in_another_process() -> None:
    code = "from tests.simulation.simulation import simulate; print(*(simulate(seed).digest for seed in range(5)))"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert printed.stdout.split() == [simulate(seed).digest for seed in range(5)]


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name != _RARE or runs_all()])
def test_guard_that_is_taken_out_is_missed(name: str) -> None:
    with mutated(name):
        assert first_failure(_MUTATION_SEEDS) is not None
