"""The simulated servers: start, kill, pause, cut off, drain; and calls to them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from tests.simulation.agents import AgentWorld
from tests.simulation.loop import SimulatedLoop
from tests.simulation.store import Database, ProcessStore
from turnwire.core.contracts.stores import Store
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.server.streams.hub import StreamHub
from turnwire.settings import Settings

LEASE = 2.0
LIMITS = Limits(lease=LEASE, cancel_patience=1.0, turn_timeout=120.0, max_queued_turns=16)


@cache
def _settings() -> Settings:
    # Without heartbeats, which are not part of a log's bytes.
    return Settings(heartbeat=900, stream_lifetime=900, write_timeout=5)


class ServerLostError(Exception):
    """A server was killed, or does not answer."""


class Server:
    """One process with a runner and streams."""

    def __init__(self, database: Database, name: str, world: AgentWorld, limits: Limits) -> None:
        self.process = database.loop.add_process(name)
        self.store = ProcessStore(database, self.process)
        self.calls: dict[asyncio.Future[Any], None] = {}
        self.is_open = False
        self.is_draining = False
        self._loop = database.loop
        self._world = world
        self._limits = limits

    async def _open(self) -> None:
        store = cast(Store, self.store)
        self.runner = TurnRunner(store, self._world.agents(), self._limits)
        self.hub = StreamHub(store, _settings(), lambda _: True)
        self.services = SimpleNamespace(streams=self.hub, runner=self.runner, store=self.store)
        while True:
            try:
                await self.runner.open()
                break
            except Exception:
                await asyncio.sleep(0.2)  # A server that cannot start is started again.
        self.hub.open()
        self.is_open = True

    def start(self) -> None:
        self.process.context.run(self._loop.create_task, self._open())

    async def call(self, action: Callable[["Server"], Awaitable[Any]], timeout: float = 6.0) -> Any:
        """Run an action in the server for a client outside of it. Raises ServerLostError, or what the action raises."""
        if not self.process.is_alive or not self.is_open:
            raise ServerLostError
        answer = self._loop.create_future()
        self.calls[answer] = None
        outside = self._loop.outside.context

        def reply(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)

        async def run() -> None:
            try:
                result = await action(self)
            except Exception as error:
                self._loop.call_later(0.001, reply, None, error, context=outside)
            else:
                self._loop.call_later(0.001, reply, result, None, context=outside)

        self.process.context.run(self._loop.create_task, run())
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            raise ServerLostError from error
        finally:
            self.calls.pop(answer, None)


class Cluster:
    """All servers of a simulation."""

    def __init__(
        self, loop: SimulatedLoop, chooser: random.Random, database: Database, world: AgentWorld, limits: Limits
    ) -> None:
        self.servers: list[Server] = []
        self._loop = loop
        self._chooser = chooser
        self._database = database
        self._world = world
        self._limits = limits
        self._count = 0

    def start(self) -> Server:
        server = Server(self._database, f"p{self._count}", self._world, self._limits)
        self._count += 1
        self.servers.append(server)
        server.start()
        return server

    def any_server(self) -> Server:
        """Return one of the servers. Raises ServerLostError if there is none."""
        if not self.servers:
            raise ServerLostError
        return self._chooser.choice(self.servers)

    def kill(self, server: Server) -> None:
        self._database.trace(server.process.name, "killed")
        self._loop.kill(server.process)
        self.servers.remove(server)
        for call in list(server.calls):
            if not call.done():
                call.set_exception(ServerLostError())

    async def terminate(self, server: Server) -> None:
        """Drain a server as SIGTERM does, then end its process."""
        if not server.is_open or server.is_draining:
            return
        self._database.trace(server.process.name, "drains")
        server.is_draining = True

        async def drain(server: Server) -> None:
            server.hub.drain()
            await server.runner.drain(self._chooser.choice((0.05, 0.5, 2.0)))
            await server.runner.close()
            await server.hub.close()

        with suppress(ServerLostError):
            await server.call(drain, timeout=20.0)
        if server in self.servers:
            self.kill(server)
