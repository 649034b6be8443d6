"""Agents that need a running event loop to be made: checkpointers, MCP servers, connection pools.

    @asynccontextmanager
    async def make():
        async with AsyncSqliteSaver.from_conn_string("threads.db") as saver:
            yield create_agent(model, checkpointer=saver)

The server opens such a factory on its loop when it opens, and closes it when it has closed everything that uses it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, cast

from turnwire.core.contracts import Agent
from turnwire.core.events import Event
from turnwire.core.turns import Turn

_CLOSE_SECONDS = 20.0


class AgentFactory:
    """The place of an agent that is not opened yet. `make` returns the context manager that yields the agent."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.make = make

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        raise RuntimeError("the agent's factory is not open; open the server first")


def factory_of(target: Any) -> AgentFactory | None:
    """Return the factory if the object is an async context manager, or a function of no arguments that makes one."""
    if inspect.isclass(target):
        return None
    if isinstance(target, AbstractAsyncContextManager):
        manager = cast("AbstractAsyncContextManager[Any]", target)
        return AgentFactory(lambda: manager)
    if not inspect.isasyncgenfunction(getattr(target, "__wrapped__", None)) or inspect.isasyncgenfunction(target):
        return None
    required = [each for each in inspect.signature(target).parameters.values() if each.default is each.empty]
    return None if required else AgentFactory(target)


class FactoryAgents:
    """Opens the factories among some agents, and puts the agents in their place.

    One task opens and closes them, as the cancel scopes of MCP clients demand.
    """

    def __init__(self, agents: MutableMapping[str, Agent], as_agent: Callable[[Any], Agent]) -> None:
        self.opened: set[str] = set()
        self._agents = agents
        self._as_agent = as_agent
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the factories. Raises what they raise, with a note that names the agent."""
        factories = {name: agent for name, agent in self._agents.items() if isinstance(agent, AgentFactory)}
        if not factories:
            return
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(factories, opened))
        await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _hold(self, factories: dict[str, AgentFactory], opened: asyncio.Future[None]) -> None:
        async with AsyncExitStack() as stack:
            for name, factory in factories.items():
                try:
                    agent = self._as_agent(await stack.enter_async_context(factory.make()))
                    if isinstance(agent, AgentFactory):
                        raise TypeError("a factory must yield an agent, not another factory")
                except Exception as error:
                    error.add_note(f"The agent {name!r} could not be made by its factory.")
                    raise
                self._agents[name] = agent
                self.opened.add(name)
            opened.set_result(None)
            await self._closing.wait()

    async def close(self) -> None:
        """Close the factories, in the reverse order. Raises what they raise, and TimeoutError."""
        self._closing.set()
        if self._task is not None:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._task
