"""The runtime of extensions: discovers extensions and keeps them running beside the agents they talk to.

It is opened in two steps. `load` comes before turns are run, because an extension may provide the agent of a queued
turn; `start` comes after, because a channel may receive a message at once. Extensions run in this process and can do
what it can do: their failures are isolated, but there is no sandbox.

If the store is shared, every process loads the extensions, so that their agents, tools and context are everywhere. What
acts by itself (channels, services, subscribers) is started by one process at a time, which holds a lease for it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import NamedLeases, Store
from turnwire.core.errors import StoreError
from turnwire.core.run.runner import TurnRunner
from turnwire.extensions.calls import ExtensionLimits, cancel_all
from turnwire.extensions.channels import ChannelHost
from turnwire.extensions.contract import AgentProvider, ChannelProvider, ContextProvider, ExtensionContext, ToolProvider
from turnwire.extensions.delivery import DeliveryRecords
from turnwire.extensions.events import EventBus
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.loader import Loader
from turnwire.extensions.manifest import FoundExtension, Manifest, discover
from turnwire.extensions.router import ContextAgent, MessageRouter
from turnwire.extensions.tables import TABLES, ExtensionTables
from turnwire.tools import Tool

logger = logging.getLogger("turnwire.extensions")

OfferTools = Callable[[Sequence[Tool]], None]
ELSEWHERE = "another process runs it"
_RENEWALS = 4
"""The number of times that a lease is renewed while it lasts."""
_SAFE_SHARE = 0.8
"""The share of a lease after which a process that cannot renew it stops its extensions, before others start them."""


class ExtensionLeases:
    """Claims and renews the leases that `wanted` names. `changed` is set when `held` changes."""

    def __init__(self, leases: NamedLeases, wanted: Callable[[], Sequence[str]]) -> None:
        self.held: frozenset[str] = frozenset()
        self.changed = asyncio.Event()
        self.interval = leases.seconds / _RENEWALS
        self._leases = leases
        self._wanted = wanted
        self._renewed_at = monotonic()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Claim the leases that are free, and keep trying for the others."""
        await self._renew()
        self._task = asyncio.create_task(self._keep_renewing(), name="extension leases")

    async def close(self) -> None:
        await cancel_all([self._task], self._leases.seconds)
        with suppress(StoreError):  # They lapse by themselves.
            await self._leases.release(sorted(self.held))
        self.held = frozenset()

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            try:
                await self._renew()
            except Exception:
                logger.exception("the leases on extensions could not be renewed; it is tried again")

    async def _renew(self) -> None:
        began = monotonic()
        wanted = self._wanted()
        seconds = self._leases.seconds
        # Leases that were renewed before must be given up in time, even if the database does not answer.
        patience = max(self.interval, self._renewed_at + seconds * _SAFE_SHARE - began)
        try:
            async with asyncio.timeout(patience):
                held = frozenset(await self._leases.claim(wanted)) if wanted else frozenset[str]()
                # Those that could not be started here are left to others.
                if unwanted := self.held - set(wanted):
                    await self._leases.release(sorted(unwanted))
        except (StoreError, TimeoutError) as error:
            if monotonic() - self._renewed_at < seconds * _SAFE_SHARE:
                return
            logger.warning("the leases on extensions cannot be renewed, so these stop here: %s", error)
            held = frozenset[str]()
        else:
            self._renewed_at = began
        if held != self.held:
            self.held = held
            self.changed.set()


class ExtensionRuntime:
    """The extensions of one server. `data` holds a folder for each of them; their deliveries are in the store.

    `lease` is the time in seconds after which another process of a shared store takes over the extensions of this one.
    Without `leads` this process leaves channels, services and subscribers to others. With `allowed`, extensions of the
    user's own folder and of packages run only if their id is in it.
    """

    def __init__(
        self,
        store: Store,
        runner: TurnRunner,
        folders: Sequence[Path],
        data: Path,
        *,
        limits: ExtensionLimits | None = None,
        allowed: Collection[str] | None = None,
        lease: float = 10,
        leads: bool = True,
    ) -> None:
        self._store = store
        self._leads = leads
        self._folders = folders
        self._allowed = allowed
        self._data = data / "extensions"
        self._limits = limits or ExtensionLimits()
        self._attached: list[ExtensionHost] = []
        self._named_leases = leases = store.leases(lease)
        self._leases = None if leases is None else ExtensionLeases(leases, self._wanted_leases)
        self._channels: dict[str, ChannelHost] = {}
        self._moving: asyncio.Task[None] | None = None
        tables = ExtensionTables(store, leases)
        self._tables = [tables]
        self.bus = EventBus(tables, self._limits)
        deliveries = DeliveryRecords(tables, self._limits.session_timeout)
        self.router = MessageRouter(store, runner, deliveries, self.bus, self._limits)
        self.loader = Loader(self._limits, self._may_run)
        self.tools: dict[str, Tool] = {}
        """The extensions' tools by name."""

    @property
    def hosts(self) -> Mapping[str, ExtensionHost]:
        """All extensions in the order they start, including those that failed."""
        return self.loader.hosted

    def attach(self, id: str, extension: Any, **fields: Any) -> None:
        """Add an extension object before `load`; `fields` are those of its manifest."""
        defaults = {"name": id, "version": "0", "api": "1", "entrypoint": "main:Attached", **fields}
        manifest = Manifest.model_validate({"id": id, **defaults})
        self._attached.append(
            ExtensionHost(FoundExtension(id=id, source="attached", package="", manifest=manifest), extension)
        )

    async def load(self, agents: dict[str, Agent], as_agent: Callable[[Any], Agent], offer_tools: OfferTools) -> None:
        """Import and initialize the extensions, and add their agents, tools and context.

        Raises StoreError if the tables cannot be created. An extension that fails raises nothing.
        """
        await self._store.create_tables(TABLES)
        await self.bus.prune()
        await asyncio.to_thread(self._discover_and_import)
        await self.loader.initialize_all(self._context)
        self.loader.detect_and_wire_all(lambda host: self._register(host, agents, as_agent))
        if self.tools:
            offer_tools(list(self.tools.values()))
        if self.router.starter.providers:
            provide = self.router.starter.context if self._limits.extension_context == "all" else None
            agents.update({name: ContextAgent(agent, provide) for name, agent in agents.items()})

    async def start(self) -> None:
        """Start the extensions, and resume the deliveries that earlier processes left."""
        if self._leases is None:
            try:
                await self.router.load_undelivered()
            except StoreError:
                logger.exception("the undelivered answers could not be loaded; the next start tries again")
        await self.loader.start_all(self._on_started, except_for=self._is_leased)
        for host in self.loader.hosted.values():
            if not host.is_up and not self._is_leased(host):
                self._drop_failed(host)
        if self._leases is not None:
            await self._leases.open()
            await self._try_to_move()
            self._moving = asyncio.create_task(self._keep_moving(self._leases), name="extensions")

    def _on_started(self, host: ExtensionHost) -> None:
        self.router.resume(host.id)

    def _drop_failed(self, host: ExtensionHost) -> None:
        self.router.channels.pop(host.id, None)
        self.router.starter.providers.pop(host.id, None)

    # Leases

    def _is_leased(self, host: ExtensionHost) -> bool:
        """Return True if the extension acts by itself, so that only one process may run it."""
        acts = "channel" in host.provides or "service" in host.provides or self.bus.has_subscribed(host.id)
        return self._leases is not None and acts

    def _wanted_leases(self) -> list[str]:
        if not self._leads:
            return []
        return [
            host.id for host in self.hosts.values() if self._is_leased(host) and (host.is_up or host.state == "loaded")
        ]

    async def _keep_moving(self, leases: ExtensionLeases) -> None:
        while True:
            # Also without a change: a service may have failed for good, or a move may have failed.
            with suppress(TimeoutError):
                async with asyncio.timeout(leases.interval):
                    await leases.changed.wait()
            leases.changed.clear()
            await self._try_to_move()

    async def _try_to_move(self) -> None:
        try:
            await self._move()
        except StoreError as error:
            logger.warning("an extension could not be moved; it is tried again: %s", error)
        except Exception:
            logger.exception("an extension could not be moved; it is tried again")

    async def _move(self) -> None:
        """Start the extensions whose lease this process has, and stop those that it has lost or cannot run."""
        assert self._leases is not None
        for host in reversed(list(self.hosts.values())):
            may_run = self._may_start(host) and not self.loader.has_failed(host)
            if host.is_up and self._is_leased(host) and not may_run:
                await self._leave(host)
        for host in self.hosts.values():
            if host.is_up and self._is_leased(host):
                self.bus.start(host.id)  # It may have subscribed while it started.
            elif self._is_leased(host) and host.state == "loaded":
                if self._may_start(host):
                    await self._take(host)
                elif not host.message:
                    host.set_state("loaded", ELSEWHERE)

    def _may_start(self, host: ExtensionHost) -> bool:
        """Return True if this process has the lease of the extension, and of those that it depends on."""
        assert self._leases is not None
        needed = [self.hosts[id] for id in host.manifest.depends_on if id in self.hosts]
        return host.id in self._leases.held and all(
            self._may_start(other) for other in needed if self._is_leased(other)
        )

    async def _take(self, host: ExtensionHost) -> None:
        # The process that ran it may have left deliveries.
        await self.router.load_undelivered()
        if host.id in self._channels:
            self.router.channels[host.id] = self._channels[host.id]
        self.bus.start(host.id)
        await self.loader.start(host, self._on_started)
        if not host.is_up:
            self._drop_failed(host)
            await self.bus.stop(host.id)

    async def _leave(self, host: ExtensionHost) -> None:
        self.router.channels.pop(host.id, None)
        await self.router.drop(host.id)
        await self.bus.stop(host.id)
        await self.loader.pause(host, ELSEWHERE)

    async def close(self) -> None:
        """Deliver finished answers, then stop the extensions. Comes after the turns were drained."""
        async with AsyncExitStack() as stack:
            for tables in self._tables:
                stack.push_async_callback(tables.close)
            if self._leases is not None:
                await cancel_all([self._moving], self._limits.extension_timeout)
                # After the extensions have stopped, so that two never run at once.
                stack.push_async_callback(self._leases.close)
            stack.push_async_callback(self.bus.close)
            stack.push_async_callback(self.loader.stop_all)
            await self.router.close()

    def _may_run(self, found: FoundExtension) -> bool:
        """Return True if all extensions may run, or this one is bundled, or was named by its folder or its id."""
        if self._allowed is None or found.source == "bundled" or found.id in self._allowed:
            return True
        folders = [folder.resolve() for folder in self._folders]
        return (
            found.source == "folder"
            and found.folder is not None
            and (found.folder in folders or found.folder.parent in folders)
        )

    def _discover_and_import(self) -> None:
        self.loader.arrange(discover(self._folders, self._may_run), self._attached)
        self.loader.import_all()

    def _context(self, host: ExtensionHost) -> ExtensionContext:
        # Registered before it is started: a channel may receive a message while it starts.
        if isinstance(host.extension, ChannelProvider):
            self._channels[host.id] = ChannelHost(
                host.id,
                host.extension,
                is_streaming=host.config.get("streaming_enabled", True) is not False,
                timeout=self._limits.channel_timeout,
            )
            if self._leases is None:
                self.router.channels[host.id] = self._channels[host.id]
        tables = ExtensionTables(self._store, self._named_leases, host.id)
        self._tables.append(tables)
        return ExtensionContext(host, self.router, self.bus, self._data / host.id, tables)

    def _register(self, host: ExtensionHost, agents: dict[str, Agent], as_agent: Callable[[Any], Agent]) -> None:
        """Add what the extension provides: all of it, or nothing if a part cannot be used."""
        extension = host.extension
        tools = list(extension.get_tools()) if isinstance(extension, ToolProvider) else []
        provided: dict[str, Any] = dict(extension.get_agents()) if isinstance(extension, AgentProvider) else {}
        own_agents = {name: as_agent(agent) for name, agent in provided.items() if name not in agents}
        if isinstance(extension, ContextProvider):
            self.router.starter.providers[host.id] = extension
        for tool in tools:
            if self.tools.setdefault(tool.name, tool) is not tool:
                host.notes.append(f"its tool {tool.name!r} is left out: there is another one of this name")
        for name in provided.keys() - own_agents.keys():
            host.notes.append(f"its agent {name!r} is left out: there is another one of this name")
        agents.update(own_agents)
