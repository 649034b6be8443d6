"""The kernel: finds extensions and keeps them running beside the agents they talk to.

It is opened in two steps. `load` comes before turns are run, because an extension may bring the agent of a turn that
waits; `start` comes after, because a channel may bring a message at once. Extensions run in this process and can do
what it can do: the kernel isolates their failures, it is no sandbox.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from turnwire.core.contracts import Agent, Store
from turnwire.core.runner import TurnRunner
from turnwire.extensions.calls import KernelLimits, reason
from turnwire.extensions.channels import Channel
from turnwire.extensions.context import Context
from turnwire.extensions.delivery import DeliveryRecords
from turnwire.extensions.discovery import FoundExtension, discover
from turnwire.extensions.events import EventBus
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.journal import Journal
from turnwire.extensions.loader import Loader
from turnwire.extensions.manifest import Manifest
from turnwire.extensions.router import EnrichedMessage, MessageRouter
from turnwire.tools import Tool

OfferTools = Callable[[Sequence[Tool]], None]


class Kernel:
    """`data` holds a folder for each extension and, if `keeps`, the journal; without, nothing outlives the process."""

    def __init__(
        self,
        store: Store,
        runner: TurnRunner,
        folders: Sequence[Path],
        data: Path,
        *,
        keeps: bool = True,
        limits: KernelLimits | None = None,
        environment: Mapping[str, str] = os.environ,
        finds_installed: bool = True,
    ) -> None:
        self._folders = folders
        self._data = data / "extensions"
        self._environment = environment
        self._limits = limits or KernelLimits()
        self._finds_installed = finds_installed
        self._given: list[ExtensionHost] = []
        self._journal = Journal(data if keeps else None)
        self.bus = EventBus(self._journal, self._limits)
        deliveries = DeliveryRecords(self._journal, self._limits.session_timeout)
        self.router = MessageRouter(store, runner, deliveries, self.bus, self._limits)
        self.loader = Loader(self._limits, environment)
        self.tools: dict[str, Tool] = {}
        """What the extensions' tools are called."""

    @property
    def extensions(self) -> Mapping[str, ExtensionHost]:
        """In the order they start, those that failed among them."""
        return self.loader.hosted

    def attach(self, id: str, extension: Any, **fields: Any) -> None:
        """Adds an extension that is an object already, before `load`; `fields` are those of its manifest."""
        given = {"name": id, "version": "0", "api": "1", "entrypoint": "main:Given", **fields}
        manifest = Manifest.model_validate({"id": id, **given})
        self._given.append(
            ExtensionHost(FoundExtension(id=id, source="given", package="", manifest=manifest), extension)
        )

    async def load(self, agents: dict[str, Agent], as_agent: Callable[[Any], Agent], offer_tools: OfferTools) -> None:
        """Imports and initializes all there are. Their agents join `agents`, which learn what extensions know.

        Raises StoreUnusableError if the journal cannot be opened; extensions that fail do not matter.
        """
        await self._journal.open()
        await self.bus.prune()
        await asyncio.to_thread(self._find_and_import)
        await self.loader.initialize_all(self._context)
        for hosted in self.loader.hosted.values():
            if hosted.state == "loaded":
                try:
                    self._take_in(hosted, agents, as_agent)
                except Exception as error:
                    hosted.fail(f"what it provides cannot be used: {reason(error)}", "its own code is at fault")
        if self.tools:
            offer_tools(list(self.tools.values()))
        if self.router.asker.providers:
            agents.update({name: EnrichedMessage(agent) for name, agent in agents.items()})

    async def start(self) -> None:
        """Starts them, and takes up what an earlier process has not brought to their channels."""
        await self.loader.start_all()
        for hosted in self.loader.hosted.values():
            if not hosted.is_up:
                self.router.channels.pop(hosted.id, None)
                self.router.asker.providers.pop(hosted.id, None)
        self.router.resume()

    async def close(self) -> None:
        """After the turns were wound down: brings what has ended, then stops the extensions."""
        async with AsyncExitStack() as then:
            then.push_async_callback(self._journal.close)
            then.push_async_callback(self.bus.close)
            then.push_async_callback(self.loader.stop_all)
            await self.router.close()

    def _find_and_import(self) -> None:
        self.loader.arrange(discover(self._folders) if self._finds_installed else [], self._given)
        self.loader.import_all()

    def _context(self, hosted: ExtensionHost) -> Context:
        # Before it is started: a channel may bring a message while it starts.
        if "channel" in hosted.provides:
            self.router.channels[hosted.id] = Channel(
                hosted.id,
                hosted.extension,
                hosted.provides,
                streams=hosted.config.get("streaming_enabled", True) is not False,
                timeout=self._limits.channel_timeout,
            )
        return Context(hosted, self.router, self.bus, self._data / hosted.id, self._environment)

    def _take_in(self, hosted: ExtensionHost, agents: dict[str, Agent], as_agent: Callable[[Any], Agent]) -> None:
        extension: Any = hosted.extension
        if "context" in hosted.provides:
            self.router.asker.providers[hosted.id] = extension
        for tool in extension.get_tools() if "tools" in hosted.provides else ():
            if self.tools.setdefault(tool.name, tool) is not tool:
                hosted.notes.append(f"its tool {tool.name!r} is left out: another one is called so")
        given: dict[str, Any] = dict(extension.get_agents()) if "agents" in hosted.provides else {}
        for name, agent in given.items():
            if name in agents:
                hosted.notes.append(f"its agent {name!r} is left out: another one is called so")
            else:
                agents[name] = as_agent(agent)
