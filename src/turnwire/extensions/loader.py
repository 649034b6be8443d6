"""Loads extensions in order, starts them, watches over them, and stops them. One that fails costs nobody else anything.

discovered ─┬─▶ unconfigured                     something of it is not set: no failure
            └─▶ loaded ─▶ starting ─▶ running ⇄ degraded ─▶ stopped
                  └───────────┴──────────┴─▶ failed
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from turnwire.extensions.calls import KernelLimits, reason
from turnwire.extensions.contract import ExtensionContext, ServiceProvider
from turnwire.extensions.discovery import FoundExtension
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.manifest import Manifest

# In which order extensions start: each after those it depends on. A knot stops those in it, and nobody else.


def start_order(manifests: Mapping[str, Manifest]) -> tuple[list[str], dict[str, str]]:
    """The ids in order, and what is wrong with those that cannot start. What needs one of these is not said here."""
    wrong = {
        name: f"it depends on {missing[0]!r}, which is not there; install it, or remove it from depends_on"
        for name, manifest in manifests.items()
        if (missing := [needed for needed in manifest.depends_on if needed not in manifests])
    }
    graph = {name: set(manifest.depends_on) & set(manifests) for name, manifest in manifests.items()}
    while (cycle := _find_cycle(graph)) is not None:
        for name in cycle:
            wrong[name] = f"its dependencies go round in a circle: {' → '.join(cycle)} → {cycle[0]}"
            graph[name] = set()
    # Wishes come last: one that would make a circle is not granted.
    for name, manifest in manifests.items():
        for earlier in manifest.after:
            if earlier in manifests and name not in wrong:
                graph[name].add(earlier)
                if _find_cycle(graph) is not None:
                    graph[name].discard(earlier)
    return list(TopologicalSorter(graph).static_order()), wrong


def _find_cycle(graph: Mapping[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[:0:-1]
    return None


# Keeps `run_background` of an extension running: started again when it fails, later each time, and not for ever.


logger = logging.getLogger("turnwire.extensions")

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
MOST_FAILURES = 8
"""One after the other, each before the service has run for `LONGEST_DELAY`."""


class BackgroundSupervisor:
    def __init__(self, hosted: ExtensionHost, *, first_delay: float = FIRST_DELAY) -> None:
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


class Loader:
    def __init__(self, limits: KernelLimits, environment: Mapping[str, str] = os.environ) -> None:
        self._limits = limits
        self._environment = environment
        self._can_load: dict[str, bool] = {}
        self._supervisors: dict[str, BackgroundSupervisor] = {}
        self._watching: asyncio.Task[None] | None = None
        self.hosted: dict[str, ExtensionHost] = {}
        """In the order they start."""

    def arrange(self, found: Iterable[FoundExtension], given: Iterable[ExtensionHost] = ()) -> None:
        """Puts what was found in order, and finds out which can be loaded. Runs nothing of them."""
        hosted = {one.id: ExtensionHost(one) for one in found} | {one.id: one for one in given}
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

    async def initialize_all(self, context_for: Callable[[ExtensionHost], ExtensionContext]) -> None:
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
                    supervisor = BackgroundSupervisor(hosted, first_delay=self._limits.restart_delay)
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

    def _is_restarting(self, hosted: ExtensionHost) -> bool:
        supervisor = self._supervisors.get(hosted.id)
        return supervisor is not None and supervisor.waits_to_restart

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.health_interval)
            await self.check_all()

    def _in_state(self, state: str) -> list[ExtensionHost]:
        return [hosted for hosted in self.hosted.values() if hosted.state == state]

    def _has_dependencies(self, hosted: ExtensionHost) -> bool:
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
