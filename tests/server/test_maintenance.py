"""The maintenance of a server's store: its interval, the age of the logs it deletes, and failures."""

import asyncio
from pathlib import Path

import pytest

from tests.serving import Puppet, quick_settings
from tests.simulated_time import SimulatedTimeLoop
from turnwire import app
from turnwire.app import Turnwire
from turnwire.core.errors import StoreError
from turnwire.core.log.codec import now_ms
from turnwire.stores.memory import MemoryStore


class Maintenance:
    """Records each call of `maintain`, with the time of the loop; the first call fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.times: list[float] = []
        self.expiries: list[int] = []

    async def maintain(self, *, expire_before: int) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.expiries.append(expire_before)
        if len(self.times) == 1:
            raise self.error


@pytest.mark.parametrize("error", [StoreError("the disk is busy"), KeyError(7)])
def test_maintenance_runs_at_its_interval_also_after_a_failure(
    tmp_path: Path, errors_in_the_log: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(app, "MAINTENANCE_INTERVAL", 7)
    errors_in_the_log.append("store maintenance failed")
    maintenance, store = Maintenance(error), MemoryStore()
    store.maintain = maintenance.maintain

    async def run_for_a_while() -> None:
        settings = quick_settings(tmp_path, keep_logs=60)
        turnwire = Turnwire(Puppet(), store=store, settings=settings)
        async with turnwire.lifespan():
            await asyncio.sleep(7 * 3 + 1)  # Of simulated time.

    began = now_ms()
    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        runner.run(run_for_a_while())
    assert len(maintenance.times) == 3
    assert maintenance.times[1] - maintenance.times[0] == pytest.approx(7)
    assert maintenance.times[2] - maintenance.times[1] == pytest.approx(7)
    for expiry in maintenance.expiries:
        assert began <= expiry + 60_000 <= now_ms()
