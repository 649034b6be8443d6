"""The promises hold whatever fails: a short campaign. `scripts/faults` makes longer ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.campaign import FAULTS
from tests.faults.cluster import faketime

_ROOT = Path(__file__).parents[2]
# The campaign ends by itself before that, whatever happens.
_BOUND_SECONDS = 150


@pytest.mark.timeout(_BOUND_SECONDS + 30)
def test_whatever_fails_no_promise_is_broken() -> None:
    # In a process of its own, and with mounts of its own: whatever becomes of it, nothing is left behind.
    apart = ["unshare", "--mount"] if os.geteuid() == 0 else []
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
    ]
    run = subprocess.run(
        [*apart, *command], cwd=_ROOT, capture_output=True, text=True, timeout=_BOUND_SECONDS, check=False
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-4_000:]
    assert "| violations | 0 |" in run.stdout
    # Only root can mount a disk to fill.
    for name in FAULTS if apart else FAULTS.keys() - {"fill_disk"}:
        assert f"| fault: {name} |" in run.stdout


def test_clocks_can_be_set() -> None:
    assert faketime() is not None, "these tests need libfaketime; on Debian and Ubuntu: apt-get install libfaketime"
