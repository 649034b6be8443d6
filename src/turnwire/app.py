"""`Turnwire`: an agent, a store and an ASGI app, with one life from `open` to `close`."""

import asyncio
import inspect
import logging
import secrets
import shutil
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import gettempdir
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from turnwire import assembly
from turnwire.core.codec import now_ms
from turnwire.core.contracts import Accepted, Agent, Budget, Store
from turnwire.core.errors import (
    AgentNotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    ShuttingDownError,
    StoreError,
    TurnNotFoundError,
)
from turnwire.core.follow import fold_log
from turnwire.core.ids import is_own_id
from turnwire.core.runner import TurnRequest
from turnwire.core.turns import Message, TurnRecord, TurnState
from turnwire.server.auth import Authenticate, Authenticator, KeyRing, Logins, new_control_token
from turnwire.server.messages import MessageBody
from turnwire.server.streams.hub import StreamHub
from turnwire.settings import Settings

if TYPE_CHECKING:
    from turnwire.extensions.kernel import Kernel
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.indexer import DocumentIndexer
    from turnwire.tools import Tool

# What SIGTERM and SIGINT begin: first the balancer is told, then readers and turns, and then the web server.


class Termination:
    """Takes both signals before whoever handled them so far.

    The first one calls `leave`. After the delay, which is asked for then, or with the second one, `drain` is called,
    and the signal goes on to its earlier handler. To be made on the event loop.
    """

    def __init__(self, leave: Callable[[], None], drain: Callable[[], None], delay: Callable[[], float]) -> None:
        self._leave = leave
        self._drain = drain
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._earlier: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: asyncio.TimerHandle | None = None
        self._is_told = False
        self._is_over = False

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.getsignal(number)
            if callable(earlier):  # With no handler there is no server to shut down gracefully.
                self._earlier[number] = earlier
                signal.signal(number, self._hear)

    def unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, earlier)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        is_first, self._is_told = not self._is_told, True
        self._loop.call_soon_threadsafe(self._leave)
        if is_first and self._delay() > 0:
            self._loop.call_soon_threadsafe(self._wait, number)
        else:
            self._go_on(number, frame)

    def _wait(self, number: int) -> None:
        if not self._is_over:
            self._waiting = self._loop.call_later(self._delay(), self._go_on, number, None)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.call_soon_threadsafe(self._drain)
        self._earlier[number](number, frame)


logger = logging.getLogger("turnwire.server")

# Longer than a program takes that has to be killed.
_AGENT_CLOSE_SECONDS = 20.0


class Turnwire:
    """Runs agents and serves their turns.

    `agent` is an async generator function or an object with an `answer` method; `agents` names several,
    the first one answers by default. Those of the settings come after them. With none, or with `docs`, there is
    one named "documents" that answers from the files and folders in `docs`, and from Turnwire's own documentation
    if there are none; `watch` reads them again when they change. With the setting `vault` there is one named "vault"
    that answers from the notes in that folder, as they are now. An agent that has an `async def close()` is
    closed with this. `store` is "sqlite" (in the folder `data`), "postgres" (at `database_url`), "memory", or a store.
    `authenticate` lets a host application say who is calling, in place of API keys. With `extensions`, a list of
    folders that may be empty, these and the installed ones are run; without it, none are. A `tracer_provider` of
    OpenTelemetry's takes the spans of turns. `control_token` is the operator's, for processes that share one; each
    makes its own without it. Raises ValueError for settings that cannot be.
    """

    def __init__(
        self,
        agent: Any = None,
        *,
        agents: Mapping[str, Any] | None = None,
        store: assembly.StoreKind | Store = "sqlite",
        data: Path | str | None = None,
        settings: Settings | None = None,
        authenticate: Authenticate | None = None,
        docs: Sequence[Path | str] = (),
        watch: bool = False,
        extensions: Sequence[Path | str] | None = None,
        tracer_provider: Any = None,
        control_token: str | None = None,
    ) -> None:
        settings = settings or Settings()
        if data is not None:
            settings = settings.model_copy(update={"data": Path(data)})
        given = dict(agents or {})
        if agent is not None:
            given = {"default": agent, **given}
        self.agents: dict[str, Agent] = {name: assembly.as_agent(one) for name, one in given.items()}
        self.agents |= assembly.build_agents(settings, taken=self.agents)
        self._given = list(given.values())
        self.settings = settings
        self.librarian: DocumentIndexer | None = None
        self.vault: DocumentIndexer | None = None
        self._answering: RetrievalAgent | None = None
        self._scratch: Path | None = None
        if store == "memory" and (docs or settings.vault or not self.agents):
            self._scratch = Path(gettempdir(), f"turnwire-{secrets.token_hex(8)}")
        folder, paths = self._scratch or settings.data, [Path(path) for path in docs]
        if settings.vault is not None:
            self.vault, answering = assembly.build_vault(folder, settings.vault, settings)
            self.agents.setdefault("vault", answering)
            self.librarian = self.vault
        if docs or not self.agents:
            self.librarian, self._answering = assembly.build_retrieval(folder, paths, settings, watch=watch)
            self.agents.setdefault("documents", self._answering)
        self.store: Store = assembly.build_store(store, settings) if isinstance(store, str) else store
        self.runner = assembly.build_runner(self.store, self.agents, settings)
        self.kernel: Kernel | None = None
        if extensions is not None or settings.extensions:
            folders = [Path(folder) for folder in extensions or ()]
            self.kernel = assembly.build_kernel(self.store, self.runner, folders, settings)
        self.reports = assembly.build_reports(self.store, self.runner, settings, tracer_provider)
        self.keys = KeyRing(self.store)
        self.control_token = control_token or new_control_token()
        self.logins = Logins(self.keys.valid, settings.login_lifetime, settings.allowed_origins)
        self.gatekeeper = Authenticator(self.keys, self.control_token, authenticate, self.logins)
        self.streams = StreamHub(self.store, settings, self.keys.is_valid)
        self.is_open = False
        self.leaving = asyncio.Event()
        """Set when the process was told to end; for `drain_delay` it goes on all the same."""
        self._opening: asyncio.Lock | None = None
        self._winding_down: asyncio.Task[None] | None = None
        self._upkeep: list[asyncio.Task[None]] = []
        self._termination: Termination | None = None

    def asgi(self) -> Any:
        """The ASGI app: to be served on its own, or mounted inside another one."""
        from turnwire.server.app import TurnwireApp

        return TurnwireApp(self)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Opens and closes with the server. A host application passes it on, or does it from its own lifespan."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    async def open(self) -> None:
        """Opens the store and picks up what an earlier process left. Safe to call again."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self.is_open:
                return
            await self.store.open()
            await self.keys.open()
            for librarian in self._librarians():
                await librarian.open()
            if self.kernel is not None:
                # An extension may bring the agent of a turn that waits.
                await self.kernel.load(self.agents, assembly.as_agent, self._offer_tools)
            self.reports.open()
            await self.runner.open()
            self.streams.open()
            if self.kernel is not None:
                await self.kernel.start()
            self._upkeep.append(asyncio.create_task(self._keep_up()))
            if self.store.is_shared:
                self._upkeep.append(asyncio.create_task(self.keys.keep_up()))
            self._termination = Termination(self.leaving.set, self.drain, lambda: self.settings.drain_delay)
            self._termination.watch()
            self.is_open = True

    def drain(self) -> None:
        """Begins to shut down: readers are sent away, running turns get the grace period."""
        if self._winding_down is None and self.is_open:
            self.leaving.set()
            self._winding_down = asyncio.create_task(self.runner.drain(self.settings.shutdown_grace))
            self.streams.drain()

    @property
    def is_draining(self) -> bool:
        return self._winding_down is not None

    async def close(self) -> None:
        if not self.is_open:
            return
        self.drain()
        if self._termination is not None:
            self._termination.unwatch()
        if self._winding_down is not None:
            await self._winding_down
        for task in self._upkeep:
            task.cancel()
        if self.kernel is not None:
            await self.kernel.close()
        await self.runner.close()
        await self.streams.close()
        self.is_open = False
        await self.reports.close()
        await self._close_agents()
        for librarian in self._librarians():
            await librarian.close()
        await self.store.close()
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _librarians(self) -> "list[DocumentIndexer]":
        """That of the documents and that of the vault, which may be one."""
        return [one for one in dict.fromkeys((self.librarian, self.vault)) if one is not None]

    async def _close_agents(self) -> None:
        """Those that can be, each once, whoever made them."""
        # An object whose `answer` is all that runs was wrapped; what is to be closed is the object.
        agents: dict[int, Any] = {id(one): one for one in (*self.agents.values(), self._answering, *self._given)}
        closers = [one.close for one in agents.values() if inspect.iscoroutinefunction(getattr(one, "close", None))]
        if not closers:
            return
        closing = [asyncio.create_task(close()) for close in closers]
        ended, unfinished = await asyncio.wait(closing, timeout=_AGENT_CLOSE_SECONDS)
        for task in unfinished:
            task.cancel()
        if unfinished or any(task.exception() for task in ended):
            why = next((task.exception() for task in ended if task.exception()), None)
            logger.error("an agent could not be closed", exc_info=why)

    async def start(
        self,
        principal: str,
        body: MessageBody,
        idempotency_key: str | None = None,
        *,
        parent: TurnRecord | None = None,
        anew: bool = False,
        history: Sequence[Message] = (),
        channel: str = "http",
    ) -> Accepted:
        """Starts a turn for a message, in the session it names, or in a new one.

        `parent` is the turn, of that session and of the principal, whose history it continues; with `anew` it continues
        none; the body may name it too. `history` is what was said elsewhere before a new session.
        """
        # First, because the session may be made by this: what is refused leaves nothing behind.
        if self.is_draining:
            raise ShuttingDownError
        if body.agent is not None and body.agent not in self.agents:
            raise AgentNotFoundError(body.agent)
        session_id = await self._session_id(principal, body.session_id)
        if body.parent_turn_id:
            parent = await self.store.find_turn(principal, body.parent_turn_id)
            session_id = parent.session_id if body.session_id is None else session_id
            if parent.session_id != session_id:
                raise TurnNotFoundError(body.parent_turn_id)
        anew = anew or body.parent_turn_id == ""
        request = TurnRequest(
            principal=principal,
            session_id=session_id,
            session_external_id=body.session_id if session_id is None else None,
            message=body.message,
            agent=body.agent,
            external_id=body.turn_id,
            idempotency_key=idempotency_key,
            fingerprint=body.fingerprint(),
            on_busy=body.on_busy,
            disconnect_grace=body.disconnect_grace,
            parent_turn_id="" if anew else parent.id if parent and parent.session_id == session_id else None,
            channel=channel,
            options={**body.options, "history": to_builtins(history)} if history else body.options,
        )
        try:
            return await self.runner.start(request)
        except SessionExistsError:
            # Another request made it meanwhile.
            return await self.start(
                principal, body, idempotency_key, parent=parent, anew=anew, history=history, channel=channel
            )

    async def budget(self, principal: str) -> Budget | None:
        """What the principal has left for today; None if there is no limit."""
        return await self.runner.budget(principal) if self.settings.max_tokens_per_day else None

    async def _session_id(self, principal: str, wanted: str | None) -> str | None:
        """The id of a session that is there; None for one that the turn is to begin."""
        try:
            return None if wanted is None else (await self.store.find_session(principal, wanted)).id
        except SessionNotFoundError:
            if is_own_id(wanted or ""):
                raise
            return None

    async def state(self, record: TurnRecord) -> TurnState:
        """What a turn has come to, folded from what is committed of it."""
        if record.phase == "ended":
            state = await self.store.turn_state(record.id)
            if state is not None:
                return state
        return (await fold_log(self.store, record.id)).state()

    def _offer_tools(self, tools: "Sequence[Tool]") -> None:
        assembly.offer_tools(self.agents, tools)

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self.settings.maintenance_interval)
            try:
                await self.store.maintain(expire_before=now_ms() - int(self.settings.keep_logs * 1000))
            except StoreError:
                logger.exception("the logs could not be tidied; this is tried again")
