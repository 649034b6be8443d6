"""A channel, the simulator it talks to, and a kernel that is just big enough to run agents for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.channels.telegram.bot_api import TOKEN, BotApi
from turnwire.channels.telegram.channel import TelegramChannel
from turnwire.channels.telegram.client import Clock
from turnwire.core.errors import TurnwireError
from turnwire.core.log.files import Blob
from turnwire.extensions.contract import ApprovalAsk, QuestionAsk, StreamStep, Subscriber, Topic
from turnwire.extensions.tables import ExtensionTables
from turnwire.stores.memory import MemoryStore

ADA, BOB, STRANGER = 7, 8, 666
GROUP = -1001234567890

Piece = str | StreamStep | ApprovalAsk | QuestionAsk
Agent = Callable[[str], AsyncGenerator[Piece]]


class Receipt:
    def __init__(self, message_id: str, user_id: str, message: str, principal: str | None) -> None:
        self.message_id, self.user_id, self.message, self.principal = message_id, user_id, message, principal
        self.text: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(self) -> str:
        return await asyncio.shield(self.text)


class Kernel:
    """An ExtensionContext that keeps the promises of the contract: one answer at a time for each user, each message
    answered once, and what is being answered can be stopped.
    """

    extension_id = "telegram"
    data_folder = Path("unused")

    def __init__(
        self, kept: MemoryStore, config: Mapping[str, Any], secrets: Mapping[str, str], agent: Agent, clock: Clock
    ) -> None:
        self.clock = clock
        self.tables = ExtensionTables(MemoryStore(kept))
        self.config = config
        self.logger = logging.getLogger("turnwire.extensions.telegram")
        self.agent = agent
        self.channel: TelegramChannel | None = None
        self.received: list[tuple[str, str, str | None, str | None]] = []
        self.decided: list[tuple[str, str, bool, str]] = []
        self.sessions: list[str] = []
        self.answers: dict[str, str] = {}
        self.delivered: set[str] = set()
        self.spent: list[float] = []
        """How long the channel has kept the agent waiting with each piece, in the world's seconds."""
        self.cancelled: list[str] = []
        self.decision_error: TurnwireError | None = None
        self.replies: list[tuple[str, Any, bool, str]] = []
        """The question, the value, whether it was declined, and who has answered."""
        self.accepted: dict[str, Receipt] = {}
        """Every message by its id; those without an answer are resumed by the next process."""
        self._secrets = secrets
        self._queues: dict[str, asyncio.Queue[Receipt]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._current: dict[str, Receipt] = {}
        self._running: dict[str, asyncio.Task[str]] = {}

    def get_config(self, name: str, default: Any = None) -> Any:
        return self.config.get(name, default)

    def get_secret(self, env: str) -> str | None:
        return self._secrets.get(env)

    async def accept(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
        attachments: Sequence[Blob] = (),
    ) -> Receipt:
        assert message_id is not None
        if message_id not in self.accepted:
            self.accepted[message_id] = Receipt(message_id, user_id, text, principal)
            self._queue(self.accepted[message_id])
        return self.accepted[message_id]

    def current_message(self, user_id: str) -> Receipt | None:
        return self._current.get(user_id)

    def resume(self, accepted: Mapping[str, Receipt], delivered: Set[str]) -> None:
        """Take over what an earlier process has accepted and not delivered."""
        for id, old in accepted.items():
            receipt = self.accepted[id] = Receipt(id, old.user_id, old.message, old.principal)
            if id in delivered:
                receipt.text.set_result(self.answers[id])
            else:
                self._queue(receipt)

    async def close(self) -> None:
        tasks = list(self._workers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def working(self) -> set[asyncio.Future[str]]:
        return {receipt.text for receipt in self.accepted.values() if not receipt.text.done()}

    def _queue(self, receipt: Receipt) -> None:
        self._queues.setdefault(receipt.user_id, asyncio.Queue()).put_nowait(receipt)
        if receipt.user_id not in self._workers:
            self._workers[receipt.user_id] = asyncio.create_task(self._work(receipt.user_id))

    async def _work(self, user_id: str) -> None:
        assert self.channel is not None
        while True:
            receipt = await self._queues[user_id].get()
            await self.channel.wait_for_delivery(user_id)
            self._current[user_id] = receipt
            try:
                if receipt.message_id in self.answers:
                    # Complete before this process started: a message, not a stream.
                    await self.channel.send_to_user(user_id, self.answers[receipt.message_id])
                else:
                    self.received.append((receipt.message, user_id, receipt.principal, receipt.message_id))
                    task = self._running[user_id] = asyncio.create_task(self._answer(receipt.message, user_id))
                    try:
                        self.answers[receipt.message_id] = await task
                    finally:
                        task.cancel()
                        self._running.pop(user_id, None)
                self.delivered.add(receipt.message_id)
                receipt.text.set_result(self.answers[receipt.message_id])
            except Exception as error:
                receipt.text.set_exception(error)
            finally:
                self._current.pop(user_id, None)

    async def handle_user_message(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        raise NotImplementedError

    async def _answer(self, text: str, user_id: str) -> str:
        pieces: list[str] = []
        assert self.channel is not None
        channel = self.channel
        await self._timed(channel.on_stream_start(user_id))
        try:
            async for piece in self.agent(text):
                match piece:
                    case str():
                        pieces.append(piece)
                        await self._timed(channel.on_stream_chunk(user_id, piece))
                    case StreamStep():
                        await self._timed(channel.on_stream_step(user_id, piece))
                    case ApprovalAsk():
                        await channel.on_approval_request(user_id, piece)
                    case QuestionAsk():
                        await channel.on_question(user_id, piece)
        except asyncio.CancelledError:
            if user_id not in self.cancelled:
                raise
            await channel.on_stream_cancel(user_id, "".join(pieces))
        else:
            await channel.on_stream_end(user_id, "".join(pieces))
        return "".join(pieces)

    async def _timed(self, call: Any) -> None:
        clock = self.clock
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
        if self.decision_error is not None:
            raise self.decision_error
        self.decided.append((turn_id, call_id, approved, by))

    async def reply(
        self,
        turn_id: str,
        question_id: str,
        value: Any = None,
        *,
        by: str,
        declined: bool = False,
        reason: str | None = None,
    ) -> None:
        if self.decision_error is not None:
            raise self.decision_error
        self.replies.append((question_id, value, declined, by))

    async def new_session(self, user_id: str) -> None:
        self.sessions.append(user_id)

    async def invoke_agent(self, prompt: str, agent_id: str | None = None) -> str:
        raise NotImplementedError

    async def invoke_agent_streamed(
        self, prompt: str, on_chunk: Any, on_tool_call: Any = None, agent_id: str | None = None
    ) -> str:
        raise NotImplementedError

    async def speak_to_user(
        self,
        channel_id: str,
        user_id: str,
        prompt: str,
        *,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        raise NotImplementedError

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        raise NotImplementedError

    async def send_message(self, channel_id: str, message: str) -> None:
        raise NotImplementedError

    def subscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        raise NotImplementedError


class World:
    def __init__(self, api: BotApi, clock: Clock) -> None:
        self.kept = MemoryStore()
        self.api = api
        self.clock = clock
        self.config: dict[str, Any] = {"api_url": api.url, "allowed_users": [ADA, BOB], "polling_timeout": 30}
        self.secrets = {"TELEGRAM_BOT_TOKEN": TOKEN}
        self.agent: Agent = echo
        self.kernel = Kernel(self.kept, {}, {}, echo, clock)
        self.channel = TelegramChannel(clock)
        self.service: asyncio.Task[None] | None = None

    async def start(self, **config: Any) -> None:
        """A new process: nothing is left of an earlier one but its tables, and what its kernel has kept."""
        self.config |= config
        old = self.kernel
        self.kernel = Kernel(self.kept, self.config, self.secrets, self.agent, self.clock)
        self.kernel.answers, self.kernel.delivered = old.answers, old.delivered
        self.channel = self.kernel.channel = TelegramChannel(self.clock)
        await self.channel.initialize(self.kernel)  # type: ignore[arg-type]
        await self.channel.start()
        self.kernel.resume(old.accepted, old.delivered)
        self.service = asyncio.create_task(self.channel.run_background())

    async def crash(self) -> None:
        """Everything ends where it stands."""
        if self.service is not None:
            self.service.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self.service
        await self.kernel.close()
        await self.channel.stop()

    async def service_ended(self) -> None:
        """Wait for the end of the background service. Raises what has ended it."""
        assert self.service is not None
        async with asyncio.timeout(self.api.patience):
            await self.service

    async def delivered(self) -> None:
        """Until everything has been answered and has arrived."""
        async with asyncio.timeout(self.api.patience):
            while working := {*self.channel.opened.tasks, *self.kernel.working}:
                await asyncio.wait(working, timeout=self.api.patience)
                # What has ended leaves its set in a callback.
                await asyncio.sleep(0)

    def stored_text(self) -> str:
        """Return all that the channel keeps in its tables."""
        return "\n".join(self.kept.connection.iterdump())

    async def health(self) -> tuple[str, str]:
        health = await self.channel.health_check()
        return health.state, health.hint


async def echo(text: str) -> AsyncGenerator[Piece]:
    yield f"You said: {text}"
