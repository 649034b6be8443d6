"""A short fault campaign. `scripts/faults` runs longer ones."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.faults.campaign import faults_of
from tests.faults.cluster import StoreName, faketime
from tests.faults.office_campaign import OFFICE_MESSAGES, office_sdks, run_office_campaign
from tests.faults.readers import A2aReader, AgUiReader, Reader
from tests.faults.replica_campaign import run_replica_campaign

_ROOT = Path(__file__).parents[2]
# The campaign ends by itself before this.
_BOUND_SECONDS = 360


# The last commit before the current schemas: 4 of PostgreSQL, 6 of SQLite.
# A process with its own mounts leaves nothing behind.
_ISOLATION = ["unshare", "--mount"] if os.geteuid() == 0 else []


def _run_campaign(*options: str) -> str:
    """Run a campaign that breaks no promise, and return its report."""
    # How long a takeover takes is measured by `scripts/faults`, on a machine that has nothing else to do.
    command = [sys.executable, "-m", "tests.faults", "--workers", "3", "--takeover", "120", *options]
    run = subprocess.run(
        [*_ISOLATION, *command], cwd=_ROOT, capture_output=True, text=True, timeout=_BOUND_SECONDS, check=False
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-4_000:]
    assert "| violations | 0 |" in run.stdout
    return run.stdout


@pytest.mark.parametrize("store", ["postgres", "sqlite"])
@pytest.mark.timeout(_BOUND_SECONDS + 30)
def test_short_campaign_breaks_no_promise(store: StoreName) -> None:
    report = _run_campaign("--minutes", "0.2", "--pace", "0.8", "--seed", "5", "--store", store)
    # Only root can mount a disk to fill.
    for name in {*faults_of(store)} - (set() if _ISOLATION else {"fill_disk"}):
        assert f"| fault: {name} |" in report


@pytest.mark.rotated("sdk", "store")
@pytest.mark.parametrize("sdk", office_sdks())
@pytest.mark.parametrize("store", ["postgres", "sqlite"])
@pytest.mark.timeout(2 * _BOUND_SECONDS)
async def test_killed_and_restarted_agents_break_no_promise(store: StoreName, sdk: str, tmp_path: Path) -> None:
    verdict = await run_office_campaign(
        sdk, store, kills=3, seed=3, workers=2, folder=tmp_path, takeover_seconds=120, report=lambda _: None
    )
    assert verdict.broken == []
    assert (verdict.kills, verdict.restarts) == (3, 1)
    assert verdict.turns > len(OFFICE_MESSAGES)


@pytest.mark.timeout(_BOUND_SECONDS)
async def test_actions_from_another_replica_take_effect_once_also_with_kills(tmp_path: Path) -> None:
    verdict = await run_replica_campaign(
        repetitions=8, kills=range(5, 9), seed=1, folder=tmp_path, report=lambda _: None
    )
    assert verdict.broken == []
    assert verdict.kills == 4
    assert all(len(seconds) == 1 for seconds in verdict.seconds.values())


@pytest.mark.parametrize(
    ("kind", "wait", "rest"),
    [
        (AgUiReader, {"type": "RUN_FINISHED"}, {"type": "RUN_STARTED"}),
        (A2aReader, {"statusUpdate": {"status": {"state": "TASK_STATE_INPUT_REQUIRED"}}}, {"artifactUpdate": {}}),
    ],
)
async def test_a_reader_cut_off_after_a_past_wait_is_not_whole(
    kind: type[Reader], wait: dict[str, object], rest: dict[str, object]
) -> None:
    responses = iter([[wait, None], [rest, wait]])

    async def body() -> AsyncIterator[bytes]:
        for position, event in enumerate(next(responses)):
            if event is None:
                raise httpx.ReadError("cut")
            yield f"id: {position}\ndata: {json.dumps(event)}\n\n".encode()

    reader = kind("t1")
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=body()))) as http:
        with pytest.raises(httpx.ReadError):
            await reader.read("http://server", http)
        assert not reader.is_whole
        await reader.read("http://server", http)
    assert reader.is_whole
    assert [event for _, event in reader.frames] == [wait, rest, wait]


def test_libfaketime_is_installed() -> None:
    assert faketime() is not None, "these tests need libfaketime; on Debian and Ubuntu: apt-get install libfaketime"
