"""The services that endpoints work with."""

import asyncio
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct, field

from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.documents import DocumentSource
from turnwire.core.contracts.stores import BlockingDatabase, Store
from turnwire.core.contracts.wires import Wire
from turnwire.core.people.fairness import FairSlots
from turnwire.core.run.runner import TurnRunner
from turnwire.plugins import Service
from turnwire.reporting.watchdog import LoopBlock
from turnwire.server.auth import Authenticator, KeyRing, Logins
from turnwire.server.streams.hub import StreamHub
from turnwire.settings import Settings

if TYPE_CHECKING:
    # These are extras.
    from turnwire.server.push import PushNotifier

T = TypeVar("T")
WireFactory = Callable[[Mapping[str, str]], Wire]
"""Builds a wire from the query of a request. Raises ValueError, which names the option."""


class Lifecycle:
    """The state of a server between start-up and shutdown.

    `leaving` is set by the first signal to shut down. Turns are accepted until `is_draining`, `drain_delay` seconds
    later. `last_block` is the last time that something blocked the event loop.
    """

    __slots__ = ("is_draining", "is_open", "last_block", "leaving")

    def __init__(self) -> None:
        self.is_open = False
        self.is_draining = False
        self.leaving = asyncio.Event()
        self.last_block = LoopBlock(0)

    def note_block(self, block: LoopBlock) -> None:
        self.last_block = block


class ChannelGateway(Protocol):
    """The channels of the extensions that run in this process, by their ids."""

    @property
    def channels(self) -> Container[str]: ...

    async def accept(
        self,
        text: str,
        user_id: str,
        channel_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> object:
        """Start a turn for a channel's user, once for a message id."""
        ...


class Services(Struct, frozen=True, kw_only=True):
    """Everything that endpoints and plugins need of a server."""

    version: str
    store: Store
    runner: TurnRunner
    streams: StreamHub
    agents: Mapping[str, Agent]
    settings: Settings
    keys: KeyRing
    logins: Logins
    auth: Authenticator
    wires: Mapping[str, WireFactory]
    lifecycle: Lifecycle
    folder: Path
    """Where plugins keep files: the data folder, or one that is removed with a store in memory."""
    shared: BlockingDatabase | None = None
    """The store's database for code that blocks, if other processes use it too."""
    channels: ChannelGateway | None = None
    requests: FairSlots = field(default_factory=lambda: FairSlots("requests", slots=64, each=4, waiting=256))
    """For requests that read from the store or start a turn: fewer than the database has connections."""
    searches: FairSlots = field(default_factory=lambda: FairSlots("searches", slots=2, each=1, waiting=32, rests=True))
    uploads: FairSlots = field(default_factory=lambda: FairSlots("uploads", slots=8, each=2, waiting=64))
    """For bodies with files, which are read into memory."""
    push: "PushNotifier | None" = None
    plugins: dict[str, Service] = field(default_factory=dict[str, Service])
    """What plugins run in this server, by the plugin's name."""

    def of(self, kind: type[T]) -> T:
        """Return the plugin's service of this class. Raises LookupError if the server has none."""
        service = self.find(kind)
        if service is None:
            raise LookupError(kind.__name__)
        return service

    @property
    def documents(self) -> DocumentSource | None:
        """Return the documents of this server; None if it has none."""
        source = self.find(DocumentSource)
        return source if source is not None and source.has_documents else None

    def find(self, kind: type[T]) -> T | None:
        """Return the first service of a plugin that is of this class or protocol; None if there is none."""
        return next((service for service in self.plugins.values() if isinstance(service, kind)), None)
