"""A short fault campaign. `scripts/faults` runs longer ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.campaign import faults_of
from tests.faults.cluster import StoreName, faketime
from tests.faults.replica_campaign import run_replica_campaign

_ROOT = Path(__file__).parents[2]
# The campaign ends by itself before this.
_BOUND_SECONDS = 360


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
@pytest.mark.timeout(_BOUND_SECONDS + 30)
def test_short_campaign_breaks_no_promise(store: StoreName) -> None:
    # A process with its own mounts leaves nothing behind.
    isolation = ["unshare", "--mount"] if os.geteuid() == 0 else []
    command = [
        sys.executable,
        "-m",
        "tests.faults",
        "--minutes",
        "0.2",
        "--pace",
        "0.8",
        "--workers",
        "3",
        "--seed",
        "5",
        "--store",
        store,
        # How long a takeover takes is measured by `scripts/faults`, on a machine that has nothing else to do.
        "--takeover",
        "120",
    ]
    run = subprocess.run(
        [*isolation, *command], cwd=_ROOT, capture_output=True, text=True, timeout=_BOUND_SECONDS, check=False
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-4_000:]
    assert "| violations | 0 |" in run.stdout
    # Only root can mount a disk to fill.
    for name in {*faults_of(store)} - (set() if isolation else {"fill_disk"}):
        assert f"| fault: {name} |" in run.stdout


@pytest.mark.timeout(_BOUND_SECONDS)
async def test_actions_from_another_replica_take_effect_once_also_with_kills(tmp_path: Path) -> None:
    verdict = await run_replica_campaign(
        repetitions=8, kills=range(5, 9), seed=1, folder=tmp_path, report=lambda _: None
    )
    assert verdict.broken == []
    assert verdict.kills == 4
    assert all(len(seconds) == 1 for seconds in verdict.seconds.values())


def test_libfaketime_is_installed() -> None:
    assert faketime() is not None, "these tests need libfaketime; on Debian and Ubuntu: apt-get install libfaketime"
