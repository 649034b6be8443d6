"""Keeps `run_background` of an extension running: started again when it fails, later each time, and not for ever."""

import asyncio
import logging

from turnwire.extensions.bounded import reason
from turnwire.extensions.contract import ServiceProvider
from turnwire.extensions.hosted import Hosted

logger = logging.getLogger("turnwire.extensions")

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
MOST_FAILURES = 8
"""One after the other, each before the service has run for `LONGEST_DELAY`."""


class Supervisor:
    def __init__(self, hosted: Hosted, *, first_delay: float = FIRST_DELAY) -> None:
        self._hosted = hosted
        self._first_delay = first_delay
        self._task: asyncio.Task[None] | None = None
        self.waits_to_restart = False
        """So that a health check in the meantime does not call it well."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=f"service of {self._hosted.id}")

    async def stop(self, limit: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=limit)

    async def _keep_running(self) -> None:
        hosted, failures, loop = self._hosted, 0, asyncio.get_running_loop()
        assert isinstance(hosted.extension, ServiceProvider)
        while True:
            began = loop.time()
            try:
                await hosted.extension.run_background()
            except (Exception, SystemExit) as error:
                failures = 1 if loop.time() - began > LONGEST_DELAY else failures + 1
                logger.debug("run_background of %r failed", hosted.id, exc_info=True)
                problem = f"run_background failed: {reason(error)}"
            else:
                return
            self.waits_to_restart = True
            if failures >= MOST_FAILURES:
                hosted.fail(f"{problem}; this was the {failures}th time in a row", "mend it, and restart the server")
                return
            delay = min(self._first_delay * 2 ** (failures - 1), LONGEST_DELAY)
            hosted.tell("degraded", problem, f"it is started again after {delay:g} s")
            await asyncio.sleep(delay)
            self.waits_to_restart = False
            hosted.tell("running")
