"""The loader: loads, starts, watches and stops extensions in order. One that fails affects only its dependents.

discovered ─┬─▶ unconfigured                     a setting or secret is missing: no failure
            └─▶ loaded ─▶ starting ─▶ running ⇄ degraded ─▶ stopped
                  └───────────┴──────────┴─▶ failed
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from turnwire.core.backoff import Backoff
from turnwire.core.errors import StoreError
from turnwire.extensions.calls import ExtensionLimits, reason
from turnwire.extensions.contract import ExtensionContext, ServiceProvider
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.manifest import FoundExtension, Manifest

logger = logging.getLogger("turnwire.extensions")

NOT_NAMED = "found and not run: nobody has named it"
LONGEST_DELAY = 60.0
MAX_FAILURES = 8
"""A service that fails so often in a row, each time within `LONGEST_DELAY` seconds, is not restarted.

One that fails because of the store is restarted for ever.
"""


class Loader:
    """All extensions of one runtime."""

    def __init__(
        self,
        limits: ExtensionLimits,
        may_run: Callable[[FoundExtension], bool] = lambda _: True,
    ) -> None:
        self._limits = limits
        self._may_run = may_run
        self._can_load: dict[str, bool] = {}
        self._supervisors: dict[str, BackgroundSupervisor] = {}
        self._watching: asyncio.Task[None] | None = None
        self.hosted: dict[str, ExtensionHost] = {}
        """In the order they start."""

    def arrange(self, found: Iterable[FoundExtension], attached: Iterable[ExtensionHost] = ()) -> None:
        """Order the extensions and determine which can be loaded, without running their code."""
        hosts = {extension.id: ExtensionHost(extension) for extension in found} | {host.id: host for host in attached}
        for host in hosts.values():
            if host.state == "discovered" and host.found.source != "attached" and not self._may_run(host.found):
                hint = f"to run it, add --allow-extension {host.id}, or add {host.id} to TURNWIRE_ALLOWED_EXTENSIONS"
                host.set_state("unconfigured", NOT_NAMED, hint)
        manifests = {name: host.manifest for name, host in hosts.items() if host.state != "failed"}
        order, problems = start_order(manifests)
        self.hosted = {name: hosts[name] for name in (*order, *(name for name in hosts if name not in order))}
        for name, host in self.hosted.items():
            if name in problems and any(id in hosts and id not in manifests for id in host.manifest.depends_on):
                host.fail("it depends on an extension that failed", "correct that one first")
            elif name in problems:
                host.fail(problems[name], "correct depends_on; other extensions go on")
            elif host.state == "discovered":
                self._can_load[name] = host.configure()

    def import_all(self) -> None:
        """Import the extensions that can be loaded. Blocks, so it must run in a thread."""
        for host in self.hosted.values():
            if self._can_load.get(host.id) and self._has_dependencies(host):
                host.load()

    async def initialize_all(self, context_for: Callable[[ExtensionHost], ExtensionContext]) -> None:
        for host in self._in_state("loaded"):
            if self._has_dependencies(host) and host.create():
                await host.initialize(context_for(host), self._limits.extension_timeout)

    def detect_and_wire_all(self, wire: Callable[[ExtensionHost], None]) -> None:
        """Wire what every initialized extension provides, which is detected from the protocols that it fits.

        An extension that cannot be wired fails; the others go on.
        """
        for host in self._in_state("loaded"):
            try:
                wire(host)
            except Exception as error:
                host.fail(f"what it provides cannot be used: {reason(error)}", "correct its own code")

    async def start_all(
        self, on_started: Callable[[ExtensionHost], None], except_for: Callable[[ExtensionHost], bool] = lambda _: False
    ) -> None:
        """Start the extensions in order. `on_started` is called for each, before its service runs."""
        for host in self._in_state("loaded"):
            if not except_for(host):
                await self.start(host, on_started)
        self._watching = asyncio.create_task(self._watch())

    async def start(self, host: ExtensionHost, on_started: Callable[[ExtensionHost], None]) -> None:
        """Start one extension that is loaded."""
        limit = self._limits.extension_timeout
        if not self._has_dependencies(host):
            return
        await host.start(limit)
        if host.is_up:
            on_started(host)
            if "service" in host.provides:
                supervisor = BackgroundSupervisor(host, first_delay=self._limits.restart_delay)
                self._supervisors[host.id] = supervisor
                supervisor.start()
            await host.check(limit)

    async def pause(self, host: ExtensionHost, message: str) -> None:
        """Stop one extension, so that it can be started again, unless its service has failed for good."""
        failure = (host.message, host.hint) if self.has_failed(host) else None
        if supervisor := self._supervisors.pop(host.id, None):
            await supervisor.stop(self._limits.extension_timeout)
        await host.pause(self._limits.extension_timeout, message)
        if failure is not None:
            host.fail(*failure)

    def has_failed(self, host: ExtensionHost) -> bool:
        """Return True if the service of the extension has failed so often that it is not restarted."""
        supervisor = self._supervisors.get(host.id)
        return supervisor is not None and supervisor.has_failed

    async def stop_all(self) -> None:
        """Stop the extensions in reverse order, so that dependencies stop last."""
        if self._watching is not None:
            self._watching.cancel()
        for host in reversed(self.hosted.values()):
            if supervisor := self._supervisors.pop(host.id, None):
                await supervisor.stop(self._limits.extension_timeout)
            await host.stop(self._limits.extension_timeout)

    async def check_all(self) -> None:
        """Run the health checks of all extensions that are up, concurrently."""
        await asyncio.gather(
            *(
                host.check(self._limits.extension_timeout)
                for host in self.hosted.values()
                if host.is_up and not self._is_restarting(host)
            )
        )

    def _is_restarting(self, host: ExtensionHost) -> bool:
        supervisor = self._supervisors.get(host.id)
        return supervisor is not None and supervisor.waits_to_restart

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.health_interval)
            await self.check_all()

    def _in_state(self, state: str) -> list[ExtensionHost]:
        return [host for host in self.hosted.values() if host.state == state]

    def _has_dependencies(self, host: ExtensionHost) -> bool:
        for needed in host.manifest.depends_on:
            state = self.hosted[needed].state
            if state == "failed":
                host.fail(f"it depends on {needed!r}, which failed", f"correct {needed!r} first")
                return False
            if state in ("discovered", "unconfigured") and not self.hosted[needed].is_up:
                host.set_state(
                    "unconfigured", f"it depends on {needed!r}, which is not set up", f"set up {needed!r} first"
                )
                return False
        return True


class BackgroundSupervisor:
    """Runs `run_background` of an extension, and restarts it with a growing delay when it fails."""

    def __init__(self, host: ExtensionHost, *, first_delay: float) -> None:
        self._host = host
        self._backoff = Backoff(first=first_delay, longest=LONGEST_DELAY)
        self._task: asyncio.Task[None] | None = None
        self.waits_to_restart = False
        """True during the delay, so that a health check does not report it as running."""
        self.has_failed = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=f"service of {self._host.id}")

    async def stop(self, limit: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=limit)

    async def _keep_running(self) -> None:
        host, failures, loop = self._host, 0, asyncio.get_running_loop()
        assert isinstance(host.extension, ServiceProvider)
        while True:
            began = loop.time()
            try:
                await host.extension.run_background()
            except (Exception, SystemExit) as error:
                failures = 1 if loop.time() - began > LONGEST_DELAY else failures + 1
                logger.debug("run_background of %r failed", host.id, exc_info=True)
                problem = f"run_background failed: {reason(error)}"
                # The store's failure is not its own, and will end.
                is_store_away = isinstance(error, StoreError)
            else:
                return
            self.waits_to_restart = True
            if failures >= MAX_FAILURES and not is_store_away:
                self.has_failed = True
                host.fail(f"{problem}; this was the {failures}th time in a row", "correct it, and restart the server")
                return
            delay = self._backoff.delay(failures)
            host.set_state("degraded", problem, f"it is restarted after {delay:g} s")
            await asyncio.sleep(delay)
            self.waits_to_restart = False
            host.set_state("running")


def start_order(manifests: Mapping[str, Manifest]) -> tuple[list[str], dict[str, str]]:
    """Return the ids in order, each after its dependencies, and the problems of those that cannot start.

    Extensions that depend on one of the latter are not among the problems.
    """
    problems = {
        name: f"it depends on {missing[0]!r}, which is not installed; install it, or remove it from depends_on"
        for name, manifest in manifests.items()
        if (missing := [needed for needed in manifest.depends_on if needed not in manifests])
    }
    graph = {name: set(manifest.depends_on) & set(manifests) for name, manifest in manifests.items()}
    while (cycle := _find_cycle(graph)) is not None:
        for name in cycle:
            problems[name] = f"its dependencies form a cycle: {' → '.join(cycle)} → {cycle[0]}"
            graph[name] = set()
    # `after` is only a preference: one that would form a cycle is ignored.
    for name, manifest in manifests.items():
        for earlier in manifest.after:
            if earlier in manifests and name not in problems:
                graph[name].add(earlier)
                if _find_cycle(graph) is not None:
                    graph[name].discard(earlier)
    return list(TopologicalSorter(graph).static_order()), problems


def _find_cycle(graph: Mapping[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[:0:-1]
    return None
