"""`Turnwire`: the public facade, and the life cycle of a server from `open` to `close`."""

import asyncio
import inspect
import logging
import secrets
import shutil
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from turnwire import __version__, assembly
from turnwire.agents.loader import FactoryAgents, as_agent
from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import Accepted, Store
from turnwire.core.log.codec import now_ms
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.models.openai_client import build_types
from turnwire.reporting.watchdog import LoopWatchdog
from turnwire.server.auth import (
    Authenticate,
    Authenticator,
    KeyRing,
    Logins,
    new_control_token,
    read_login_secret,
)
from turnwire.server.messages import MessageBody
from turnwire.server.services import Lifecycle, Services
from turnwire.server.streams.hub import StreamHub
from turnwire.server.turns import start_turn, turn_state
from turnwire.settings import Settings
from turnwire.tools.threads import install_executor

if TYPE_CHECKING:
    from turnwire.extensions.runtime import ExtensionRuntime

logger = logging.getLogger("turnwire.server")

# The seconds after which ended logs are sealed and old ones deleted.
MAINTENANCE_INTERVAL = 10.0
# Longer than it takes to kill a program that does not end.
_AGENT_CLOSE_SECONDS = 20.0


class Termination:
    """Handles SIGTERM and SIGINT before the handlers that the web server has installed.

    The first signal calls `leave`. After the delay, which is read at that time, or at the second signal, `drain` is
    called, and the signal goes on to its earlier handler. Must be made on the event loop.
    """

    def __init__(self, leave: Callable[[], None], drain: Callable[[], None], delay: Callable[[], float]) -> None:
        self._leave = leave
        self._drain = drain
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._earlier: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: asyncio.TimerHandle | None = None
        self._is_signalled = False
        self._is_over = False

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.getsignal(number)
            if callable(earlier):  # Without a handler there is no web server to shut down gracefully.
                self._earlier[number] = earlier
                signal.signal(number, self._handle)

    def unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, earlier)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first, self._is_signalled = not self._is_signalled, True
        self._loop.call_soon_threadsafe(self._leave)
        if is_first and self._delay() > 0:
            self._loop.call_soon_threadsafe(self._wait, number)
        else:
            self._shut_down(number, frame)

    def _wait(self, number: int) -> None:
        if not self._is_over:
            self._waiting = self._loop.call_later(self._delay(), self._shut_down, number, None)

    def _shut_down(self, number: int, frame: FrameType | None) -> None:
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.call_soon_threadsafe(self._drain)
        self._earlier[number](number, frame)


class Turnwire:
    """Runs agents and serves their turns. Raises ValueError for unusable settings.

    - `agent`: an async generator function, an object with an `answer` method, or an agent of an SDK. `agents` names
      several, of which the first answers by default. Agents of the settings come after them. An `@asynccontextmanager`
      function that yields an agent is opened and closed with the server, on its event loop. An agent that has an
      `async def close()` is closed with the server.
    - `store`: "sqlite" (in the folder `data`), "postgres" (at `database_url`), "memory", or a store.
    - `authenticate` lets a host application name the caller, in place of API keys.
    - `demo` adds the scripted agent "demo": before all others, or as the last one if the operator has named none.
    - `extensions`: a list of folders, which may be empty; runs these and the installed ones. Without it, none run.
    - `tracer_provider`: OpenTelemetry's, for the spans of turns.
    - `control_token`: the operator's, for processes that share one; without it each makes its own.
    - `isolated`: for a process that only runs turns, beside servers that run none. Channels and services of extensions
      are left to the servers, and turns are shared evenly with other isolated processes.
    """

    def __init__(
        self,
        agent: Any = None,
        *,
        agents: Mapping[str, Any] | None = None,
        store: str | Store = "sqlite",
        data: Path | str | None = None,
        settings: Settings | None = None,
        authenticate: Authenticate | None = None,
        demo: Literal["first", "last"] | None = None,
        extensions: Sequence[Path | str] | None = None,
        tracer_provider: Any = None,
        control_token: str | None = None,
        isolated: bool = False,
    ) -> None:
        settings = settings or Settings()
        if data is not None:
            settings = settings.model_copy(update={"data": Path(data)})
        named = dict(agents or {})
        if agent is not None:
            named = {"default": agent, **named}
        self.agents: dict[str, Agent] = {name: as_agent(target) for name, target in named.items()}
        self.agents |= assembly.build_agents(settings, taken=self.agents)
        self._unwrapped = list(named.values())
        self.settings = settings
        self._scratch = Path(gettempdir(), f"turnwire-{secrets.token_hex(8)}") if store == "memory" else None
        self.store: Store = assembly.build_store(store, settings) if isinstance(store, str) else store
        self.runner = assembly.build_runner(self.store, self.agents, settings, spreads=isolated)
        self.extensions: ExtensionRuntime | None = None
        if extensions is not None or settings.extensions:
            folders = [Path(folder) for folder in extensions or ()]
            self.extensions = assembly.build_extensions(self.store, self.runner, folders, settings, leads=not isolated)
        self.reports = assembly.build_reports(self.store, self.runner, settings, tracer_provider)
        self.keys = KeyRing(self.store)
        self.control_token = control_token or new_control_token()
        self._keeps_files = store == "sqlite" or settings.database_url is not None
        self.streams = StreamHub(self.store, settings, self.keys.valid)
        logins = Logins(self.keys.valid, settings.allowed_origins)
        self.services = Services(
            version=__version__,
            store=self.store,
            runner=self.runner,
            streams=self.streams,
            agents=self.agents,
            settings=settings,
            keys=self.keys,
            logins=logins,
            auth=Authenticator(self.keys, self.control_token, authenticate, logins),
            wires=assembly.build_wires(),
            lifecycle=Lifecycle(),
            folder=self._scratch or settings.data,
            shared=assembly.build_shared(self.store, settings),
            channels=self.extensions.router if self.extensions is not None else None,
            push=assembly.build_push(self.store, self.runner, self.streams, settings),
        )
        assembly.build_plugin_services(self.services)
        self._add_own_agents(demo)
        self._opening = asyncio.Lock()
        self._draining: asyncio.Task[None] | None = None
        self._closing = AsyncExitStack()

    def _add_own_agents(self, demo: Literal["first", "last"] | None) -> None:
        """Add the agents of plugins, and the demo. Without any agent, add those that plugins have for this case."""
        agents, plugins = self.agents, self.services.plugins.values()
        for plugin in plugins:
            agents.update({**plugin.agents(), **agents})
        is_bare = not agents
        if is_bare:
            for plugin in plugins:
                agents.update(plugin.default_agents())
        if demo == "first" or (demo == "last" and is_bare):
            from turnwire.agents.demo import DemoAgent

            others = {name: agent for name, agent in agents.items() if name != "demo"}
            demo_agent = {"demo": agents.get("demo", DemoAgent())}
            agents.clear()
            agents.update(demo_agent | others if demo == "first" else others | demo_agent)

    def asgi(self) -> Any:
        """Return the ASGI app, to be served on its own or mounted inside another one."""
        # The routes take a while to load, and a process that only runs turns does not need them.
        from turnwire.server.app import TurnwireApp

        return TurnwireApp(self.services, assembly.build_routes(), self)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Open and close with the server. A host application passes this on, or enters it in its own lifespan."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> None:
        """Open the store and recover the turns of an earlier process. Safe to call again.

        If it fails, all that was opened is closed.
        """
        async with self._opening:
            if self.is_open:
                return
            async with AsyncExitStack() as stack:
                await self._open(stack)
                self._closing = stack.pop_all()
            self.services.lifecycle.is_open = True

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open everything, and add to the stack how it is closed, in the reverse order."""
        install_executor()
        await asyncio.to_thread(build_types)
        if self._scratch is not None:
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, self._scratch, ignore_errors=True)
        await self.store.open()
        stack.push_async_callback(self.store.close)
        await self.keys.open()
        logins, shared = self.services.logins, self.services.shared
        if shared is not None:
            await asyncio.to_thread(shared.open)
            stack.push_async_callback(asyncio.to_thread, shared.close)
        if self.settings.login_secret is not None:
            logins.secret = self.settings.login_secret.get_secret_value().encode()
        elif shared is not None:
            logins.secret = await asyncio.to_thread(shared.secret, "login")
        elif self._keeps_files:
            logins.secret = await asyncio.to_thread(read_login_secret, self.settings.data)
        for plugin in self.services.plugins.values():
            stack.push_async_callback(plugin.close)
            await plugin.open()
        # These are closed after the extensions, also if they were not opened.
        factories = FactoryAgents(self.agents)
        stack.push_async_callback(self._close_agents, factories)
        if self.services.push is not None:
            stack.push_async_callback(self.services.push.close)
        stack.push_async_callback(self.reports.close)
        stack.callback(self._note_closed)
        stack.push_async_callback(self.streams.close)
        stack.push_async_callback(self.runner.close)
        if self.extensions is not None:
            stack.push_async_callback(self.extensions.close)
            # Before the runner opens, because an extension may bring the agent of a turn to recover.
            await self.extensions.load(self.agents, as_agent, partial(assembly.offer_tools, self.agents))
        for plugin in self.services.plugins.values():
            assembly.offer_tools(self.agents, plugin.tools())
        await factories.open()
        self.reports.open()
        await self.runner.open()
        self.streams.open()
        if self.extensions is not None:
            await self.extensions.start()
        for plugin in self.services.plugins.values():
            stack.push_async_callback(plugin.stop)
            await plugin.start()
        stack.callback(asyncio.create_task(self._maintain()).cancel)
        if self.store.is_shared:
            stack.callback(asyncio.create_task(self.keys.follow_changes()).cancel)
        stack.push_async_callback(self._wait_until_drained)
        lifecycle = self.services.lifecycle
        watchdog = LoopWatchdog(on_block=lifecycle.note_block)
        watchdog.start()
        stack.callback(watchdog.stop)
        termination = Termination(lifecycle.leaving.set, self.drain, lambda: self.settings.drain_delay)
        termination.watch()
        stack.callback(termination.unwatch)

    def drain(self) -> None:
        """Begin to shut down: close the readers' streams, and give running turns the grace period."""
        if self._draining is None and self.is_open:
            self.services.lifecycle.leaving.set()
            self.services.lifecycle.is_draining = True
            self._draining = asyncio.create_task(self.runner.drain(self.settings.shutdown_grace))
            self.streams.drain()

    @property
    def is_open(self) -> bool:
        return self.services.lifecycle.is_open

    async def close(self) -> None:
        """Close all parts, even if one fails to close. Raises the last failure."""
        if self.is_open:
            self.drain()
            await self._closing.pop_all().aclose()

    async def _wait_until_drained(self) -> None:
        if self._draining is not None:
            await self._draining

    def _note_closed(self) -> None:
        self.services.lifecycle.is_open = False

    async def _close_agents(self, factories: FactoryAgents) -> None:
        """Close each agent that has an `async def close()`, once; then the factories of the others."""
        # An agent may wrap an object; then the object has the `close`.
        own = [agent for name, agent in self.agents.items() if name not in factories.opened]
        agents: list[Any] = [*own, *self._unwrapped]
        found = [agent.close for agent in agents if inspect.iscoroutinefunction(getattr(agent, "close", None))]
        # A wrapper may have the `close` of its agent.
        if closing := [asyncio.create_task(close()) for close in dict.fromkeys(found)]:
            done, unfinished = await asyncio.wait(closing, timeout=_AGENT_CLOSE_SECONDS)
            for task in unfinished:
                task.cancel()
            errors = [error for task in done if (error := task.exception())]
            if unfinished or errors:
                logger.error("an agent could not be closed", exc_info=errors[0] if errors else None)
        try:
            await factories.close()
        except Exception:
            logger.exception("the factory of an agent could not be closed")

    async def start(self, principal: str, body: MessageBody, idempotency_key: str | None = None) -> Accepted:
        """Start a turn for a message, in the session that it names or in a new one."""
        return await start_turn(self.services, principal, body, idempotency_key)

    async def state(self, record: TurnRecord) -> TurnState:
        """Return a turn's state, folded from what is committed of its log."""
        return await turn_state(self.store, record)

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL)
            try:
                await self.store.maintain(expire_before=now_ms() - int(self.settings.keep_logs * 1000))
            except Exception:
                logger.exception("store maintenance failed; it is tried again")
