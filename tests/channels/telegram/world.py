"""A channel, the simulator it talks to, and a kernel that is just big enough to run agents for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.channels.telegram.bot_api import TOKEN, BotApi
from turnwire.channels.telegram.channel import TelegramChannel
from turnwire.channels.telegram.rate_limits import Clock
from turnwire.core.errors import TurnEndedError
from turnwire.extensions.contract import ApprovalAsk, StreamStep, Subscriber, Topic

ADA, BOB, STRANGER = 7, 8, 666
GROUP = -1001234567890

Piece = str | StreamStep | ApprovalAsk
Agent = Callable[[str], AsyncGenerator[Piece]]


class Kernel:
    """An ExtensionContext that keeps the promises of the contract: one answer at a time for each user, each message
    answered once, and what is being answered can be stopped.
    """

    extension_id = "telegram"

    def __init__(self, folder: Path, config: Mapping[str, Any], secrets: Mapping[str, str], agent: Agent) -> None:
        self.data_folder = folder
        self.config = config
        self.logger = logging.getLogger("turnwire.extensions.telegram")
        self.agent = agent
        self.channel: TelegramChannel | None = None
        self.asked: list[tuple[str, str, str | None, str | None]] = []
        self.decided: list[tuple[str, str, bool, str]] = []
        self.sessions: list[str] = []
        self.answers: dict[str, str] = {}
        self.spent: list[float] = []
        """How long the channel has kept the agent waiting with each piece, in the world's seconds."""
        self.cancelled: list[str] = []
        self.decidable = True
        self._secrets = secrets
        self._running: dict[str, asyncio.Task[str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def get_config(self, name: str, default: Any = None) -> Any:
        return self.config.get(name, default)

    def get_secret(self, env: str) -> str | None:
        return self._secrets.get(env)

    async def handle_user_message(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        self.asked.append((text, user_id, principal, message_id))
        async with self._locks.setdefault(user_id, asyncio.Lock()):
            if message_id in self.answers:
                return self.answers[message_id]
            task = self._running[user_id] = asyncio.create_task(self._answer(text, user_id))
            try:
                answer = await task
            finally:
                task.cancel()
                self._running.pop(user_id, None)
        if message_id is not None:
            self.answers[message_id] = answer
        return answer

    async def _answer(self, text: str, user_id: str) -> str:
        said: list[str] = []
        assert self.channel is not None
        channel = self.channel
        await self._timed(channel.on_stream_start(user_id))
        try:
            async for piece in self.agent(text):
                match piece:
                    case str():
                        said.append(piece)
                        await self._timed(channel.on_stream_chunk(user_id, piece))
                    case StreamStep():
                        await self._timed(channel.on_stream_step(user_id, piece))
                    case ApprovalAsk():
                        await channel.on_approval_request(user_id, piece)
        except asyncio.CancelledError:
            if user_id not in self.cancelled:
                raise
            await channel.on_stream_cancel(user_id, "".join(said))
        else:
            await channel.on_stream_end(user_id, "".join(said))
        return "".join(said)

    async def _timed(self, call: Any) -> None:
        assert self.channel is not None
        clock = self.channel._clock
        began = clock.now()
        await call
        self.spent.append(clock.now() - began)

    async def cancel(self, user_id: str) -> bool:
        if user_id not in self._running:
            return False
        self.cancelled.append(user_id)
        self._running[user_id].cancel()
        return True

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        if not self.decidable:
            raise TurnEndedError(turn_id)
        self.decided.append((turn_id, call_id, approved, by))

    async def new_session(self, user_id: str) -> None:
        self.sessions.append(user_id)

    async def invoke_agent(self, prompt: str, agent_id: str | None = None) -> str:
        raise NotImplementedError

    async def invoke_agent_streamed(
        self, prompt: str, on_chunk: Any, on_tool_call: Any = None, agent_id: str | None = None
    ) -> str:
        raise NotImplementedError

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        raise NotImplementedError

    async def send_message(self, channel_id: str, message: str) -> None:
        raise NotImplementedError

    def subscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        raise NotImplementedError


class World:
    def __init__(self, folder: Path, api: BotApi, clock: Clock) -> None:
        self.folder = folder
        self.api = api
        self.clock = clock
        self.config: dict[str, Any] = {"api_url": api.url, "allowed_users": [ADA, BOB], "polling_timeout": 30}
        self.secrets = {"TELEGRAM_BOT_TOKEN": TOKEN}
        self.agent: Agent = echo
        self.kernel = Kernel(folder, {}, {}, echo)
        self.channel = TelegramChannel(clock)
        self._service: asyncio.Task[None] | None = None

    async def start(self, **config: Any) -> None:
        """A new process: nothing is left of an earlier one but its folder, and what its kernel has kept."""
        self.config |= config
        answers = self.kernel.answers
        self.kernel = Kernel(self.folder, self.config, self.secrets, self.agent)
        self.kernel.answers = answers
        self.channel = self.kernel.channel = TelegramChannel(self.clock)
        await self.channel.initialize(self.kernel)
        await self.channel.start()
        self._service = asyncio.create_task(self.channel.run_background())

    async def crash(self) -> None:
        """Everything ends where it stands."""
        if self._service is not None:
            self._service.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._service
        await self.channel.stop()

    def is_idle(self) -> bool:
        opened = self.channel._open
        return opened is None or not (opened._deliveries._tasks or opened.answering._workers or opened.front._tasks)

    async def delivered(self) -> None:
        """Until everything has been answered and has arrived."""
        async with asyncio.timeout(self.api.patience):
            opened = self.channel._open
            assert opened is not None
            while not self.is_idle():
                working = {*opened._deliveries._tasks, *opened.answering._workers.values(), *opened.front._tasks}
                await asyncio.wait(working, timeout=self.api.patience)
                # What has ended leaves its set in a callback.
                await asyncio.sleep(0)

    async def health(self) -> tuple[str, str]:
        health = await self.channel.health_check()
        return health.state, health.hint


async def echo(text: str) -> AsyncGenerator[Piece]:
    yield f"You said: {text}"
