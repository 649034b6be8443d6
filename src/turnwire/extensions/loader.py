"""Loads extensions in order, starts them, watches over them, and stops them. One that fails costs nobody else anything.

discovered ─┬─▶ unconfigured                     something of it is not set: no failure
            └─▶ loaded ─▶ starting ─▶ running ⇄ degraded ─▶ stopped
                  └───────────┴──────────┴─▶ failed
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping

from turnwire.extensions.contract import ExtensionContext
from turnwire.extensions.discovery import Found
from turnwire.extensions.hosted import Hosted
from turnwire.extensions.limits import KernelLimits
from turnwire.extensions.ordering import start_order
from turnwire.extensions.supervision import Supervisor


class Loader:
    def __init__(self, limits: KernelLimits, environment: Mapping[str, str] = os.environ) -> None:
        self._limits = limits
        self._environment = environment
        self._can_load: dict[str, bool] = {}
        self._supervisors: dict[str, Supervisor] = {}
        self._watching: asyncio.Task[None] | None = None
        self.hosted: dict[str, Hosted] = {}
        """In the order they start."""

    def arrange(self, found: Iterable[Found], given: Iterable[Hosted] = ()) -> None:
        """Puts what was found in order, and finds out which can be loaded. Runs nothing of them."""
        hosted = {one.id: Hosted(one) for one in found} | {one.id: one for one in given}
        manifests = {name: one.manifest for name, one in hosted.items() if one.state != "failed"}
        order, wrong = start_order(manifests)
        self.hosted = {name: hosted[name] for name in (*order, *(name for name in hosted if name not in order))}
        for name, one in self.hosted.items():
            if name in wrong and any(needed in hosted for needed in one.manifest.depends_on if needed not in manifests):
                one.fail("it depends on an extension that failed", "mend that one first")
            elif name in wrong:
                one.fail(wrong[name], "correct depends_on; the others go on without it")
            elif one.state == "discovered":
                self._can_load[name] = one.configure(self._environment)

    def import_all(self) -> None:
        """Imports those that can be loaded. May take a while: not for the event loop."""
        for hosted in self.hosted.values():
            if self._can_load.get(hosted.id) and self._has_dependencies(hosted):
                hosted.load(self._environment)

    async def initialize_all(self, context_for: Callable[[Hosted], ExtensionContext]) -> None:
        for hosted in self._in_state("loaded"):
            if self._has_dependencies(hosted) and hosted.make():
                await hosted.initialize(context_for(hosted), self._limits.extension_timeout)

    async def start_all(self) -> None:
        limit = self._limits.extension_timeout
        for hosted in self._in_state("loaded"):
            if not self._has_dependencies(hosted):
                continue
            await hosted.start(limit)
            if hosted.is_up:
                if "service" in hosted.provides:
                    supervisor = Supervisor(hosted, first_delay=self._limits.restart_delay)
                    self._supervisors[hosted.id] = supervisor
                    supervisor.start()
                await hosted.check(limit)
        self._watching = asyncio.create_task(self._watch())

    async def stop_all(self) -> None:
        """In the opposite order: what others stand on goes last."""
        if self._watching is not None:
            self._watching.cancel()
        for hosted in reversed(self.hosted.values()):
            if supervisor := self._supervisors.pop(hosted.id, None):
                await supervisor.stop(self._limits.extension_timeout)
            await hosted.stop(self._limits.extension_timeout)

    async def check_all(self) -> None:
        """Asks those that are up how they are, all at once."""
        await asyncio.gather(
            *(
                hosted.check(self._limits.extension_timeout)
                for hosted in self.hosted.values()
                if hosted.is_up and not self._is_restarting(hosted)
            )
        )

    def _is_restarting(self, hosted: Hosted) -> bool:
        supervisor = self._supervisors.get(hosted.id)
        return supervisor is not None and supervisor.waits_to_restart

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.health_interval)
            await self.check_all()

    def _in_state(self, state: str) -> list[Hosted]:
        return [hosted for hosted in self.hosted.values() if hosted.state == state]

    def _has_dependencies(self, hosted: Hosted) -> bool:
        for needed in hosted.manifest.depends_on:
            state = self.hosted[needed].state
            if state == "failed":
                hosted.fail(f"it depends on {needed!r}, which failed", f"mend {needed!r} first")
                return False
            if state in ("discovered", "unconfigured") and not self.hosted[needed].is_up:
                hosted.tell(
                    "unconfigured", f"it depends on {needed!r}, which is not set up", f"set up {needed!r} first"
                )
                return False
        return True
