"""The message router: messages from channels to agents, and answers back.

A turn runs in the core and is committed there; the router only follows its log. So a slow, failing or hanging channel
costs the agent and the other channels nothing, cancelling needs no lock, and the next process resumes what a crash has
interrupted.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import Accepted, Annotation, OnBusy, Store
from turnwire.core.errors import (
    AgentError,
    NoAgentError,
    NotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    ShuttingDownError,
    TurnwireError,
)
from turnwire.core.ids import new_id
from turnwire.core.log.codec import clean_text, now_ms
from turnwire.core.log.events import AttachedFile, Event
from turnwire.core.log.files import Blob
from turnwire.core.log.turns import Turn, TurnState
from turnwire.core.run.runner import TurnRequest, TurnRunner
from turnwire.extensions.calls import Background, ExtensionLimits, call, reason
from turnwire.extensions.channels import NO_AGENT, ChannelHost, TurnListener, final_text, follow_turn
from turnwire.extensions.contract import ContextProvider, MessageFields, MessageReceipt, OnChunk, OnToolCall, StreamStep
from turnwire.extensions.delivery import (
    Delivery,
    DeliveryQueue,
    DeliveryRecords,
    PendingDelivery,
    delivery_key,
)
from turnwire.extensions.events import EventBus

logger = logging.getLogger("turnwire.extensions")

CONTEXT = "context"
_OWN_SESSION = "self"


class MessageRouter:
    """Everything that an extension requests through its context."""

    def __init__(
        self, store: Store, runner: TurnRunner, records: DeliveryRecords, bus: EventBus, limits: ExtensionLimits
    ) -> None:
        self._store = store
        self.runner = runner
        self.records = records
        self._bus = bus
        self._limits = limits
        self._background = Background()
        self._undelivered: dict[str, Delivery] = {}
        self.channels: dict[str, ChannelHost] = {}
        self.starter = TurnStarter(store, runner, limits.extension_timeout)
        self.queue = DeliveryQueue(store, self.channels, records, bus, limits, self._start)

    async def accept(self, text: str, user_id: str, channel_id: str, **fields: Unpack[MessageFields]) -> MessageReceipt:
        """Commit the message and queue its turn. A blank message is answered with a blank text.

        Raises LookupError for a channel that is not registered, StoreError, and ShuttingDownError.
        """
        self.channel(channel_id)
        text, attachments = clean_text(text).strip(), fields.get("attachments", ())
        message_id = fields.get("message_id") or new_id()
        if not text and not attachments:
            return MessageReceipt(message_id, user_id, "")
        message = Delivery(
            key=delivery_key(channel_id, user_id, message_id),
            channel_id=channel_id,
            user_id=user_id,
            principal=fields.get("principal") or f"{channel_id}:{user_id}",
            agent_id=fields.get("agent_id"),
            text=text,
        )
        # In a task of its own: a caller that is cancelled must not leave a committed message unqueued.
        task = self._background.run(self._accept(message, attachments))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDownError from None
            raise

    async def handle_user_message(
        self, text: str, user_id: str, channel_id: str, **fields: Unpack[MessageFields]
    ) -> str:
        """Accept a message like `accept`, wait for the answer and return its text."""
        return await (await self.accept(text, user_id, channel_id, **fields)).answer()

    def current_message(self, channel_id: str, user_id: str) -> MessageReceipt | None:
        pending = self.queue.current(channel_id, user_id)
        return pending.receipt if pending else None

    async def invoke_agent(self, prompt: str, agent_id: str | None = None, *, owner: str = "kernel") -> str:
        """Run the agent on an extension's own behalf, in a session of its own. Raises AgentError."""
        return await self._invoke(prompt, agent_id, owner, TurnListener())

    async def invoke_agent_streamed(
        self,
        prompt: str,
        on_chunk: OnChunk,
        on_tool_call: OnToolCall | None = None,
        agent_id: str | None = None,
        *,
        owner: str = "kernel",
    ) -> str:
        """Run the agent like `invoke_agent`, with callbacks. An error of a callback ends the turn and is raised."""

        limit = self._limits.channel_timeout

        class Callbacks(TurnListener):
            async def send_chunk(self, text: str) -> None:
                await call(limit, on_chunk, text)

            async def send_step(self, step: StreamStep) -> None:
                if on_tool_call is not None and step.kind == "tool" and step.phase == "started":
                    await call(limit, on_tool_call, step.name)

        return await self._invoke(prompt, agent_id, owner, Callbacks())

    async def cancel(self, channel_id: str, user_id: str) -> bool:
        """Cancel the answer to this user and those that wait behind it, without taking a lock."""
        unfinished = [pending for pending in self.queue.pending(channel_id, user_id) if not pending.has_ended]
        for pending in unfinished:
            # A delivery whose turn is being started is cancelled as soon as the turn exists.
            pending.is_cancelled = True
        turns = [pending.delivery.turn_id for pending in unfinished]
        await asyncio.gather(*(self.runner.cancel(turn_id) for turn_id in turns if turn_id is not None))
        return bool(unfinished)

    async def new_session(self, channel_id: str, user_id: str) -> None:
        await self.records.new_conversation(channel_id, user_id)

    async def load_undelivered(self) -> None:
        """Load the deliveries that earlier processes left. Raises StoreError."""
        self._undelivered = {delivery.key: delivery for delivery in await self.records.undelivered()}

    def resume(self, channel_id: str) -> None:
        """Queue the deliveries that were left to a channel, before it receives new messages."""
        for delivery in list(self._undelivered.values()):
            if delivery.channel_id == channel_id and channel_id in self.channels:
                del self._undelivered[delivery.key]
                self.queue.add(delivery, is_resumed=True)

    async def drop(self, channel_id: str) -> None:
        """Leave the deliveries of a channel to the process that runs the channel now."""
        await self.queue.drop(channel_id)

    async def close(self) -> None:
        await self._background.close(self._limits.closing_patience)
        await self.queue.close(self._limits.closing_patience)

    async def _accept(self, message: Delivery, attachments: Sequence[Blob]) -> MessageReceipt:
        channel_id, user_id = message.channel_id, message.user_id
        if attachments:
            # The files are stored before the message, so that a durable message has all its files.
            session = await self.records.conversation(channel_id, user_id)
            await self.starter.keep_files(message.key, message.principal, session, attachments)
        delivery, is_new = await self.records.add(message)
        if channel_id not in self.channels:
            raise ShuttingDownError  # The store has the message: the process that runs the channel answers it.
        self._undelivered.pop(delivery.key, None)
        self._bus.wake()
        if delivery.delivered_at is not None:
            return MessageReceipt(delivery.message_id, user_id, await self._past_answer(delivery))
        return self.queue.add(delivery, is_resumed=not is_new)

    async def _start(self, pending: PendingDelivery) -> None:
        """Start the turn of an accepted message. Raises TurnwireError."""
        delivery = pending.delivery
        channel = self.channels.get(delivery.channel_id)
        accepted = await self.starter.start(
            delivery.text,
            principal=delivery.principal,
            session=delivery.session,
            agent_id=delivery.agent_id,
            channel=delivery.channel_id,
            idempotency_key=delivery.key,
            files_key=delivery.key,
            on_busy=channel.channel.on_busy if channel else "enqueue",
        )
        pending.delivery = replace(delivery, turn_id=accepted.record.id)
        await self.records.set_turn(pending.delivery)
        if pending.is_cancelled:
            await self.runner.cancel(accepted.record.id)

    async def _past_answer(self, delivery: Delivery) -> str:
        try:
            state = await self._store.turn_state(delivery.turn_id) if delivery.turn_id else None
        except NotFoundError:
            return ""  # Its session was deleted.
        return final_text(state) if state else ""

    async def _invoke(self, prompt: str, agent_id: str | None, owner: str, listener: TurnListener) -> str:
        session = await self.records.conversation(owner, _OWN_SESSION)
        principal = f"extension:{owner}"
        starting = self._background.run(
            self.starter.start(prompt.strip(), principal=principal, session=session, agent_id=agent_id, channel=owner)
        )
        try:
            state = await follow_turn(self._store, (await asyncio.shield(starting)).record.id, listener)
        except NoAgentError:
            return NO_AGENT
        except BaseException as error:
            # Nobody else waits for this answer.
            self._background.run(self._cancel_started(starting))
            if isinstance(error, TurnwireError) and not isinstance(error, AgentError):
                raise AgentError(str(error), code=error.code) from error
            raise
        return _completed_text(state)

    async def _cancel_started(self, starting: asyncio.Task[Accepted]) -> None:
        # The turn may have been accepted in the very moment that its caller left.
        with suppress(TurnwireError):
            await self.runner.cancel((await starting).record.id)

    def channel(self, channel_id: str) -> ChannelHost:
        """Return a channel that this process runs. Raises LookupError."""
        channel = self.channels.get(channel_id)
        if channel is None:
            names = ", ".join(self.channels) or "none at all"
            raise LookupError(f"there is no channel {channel_id!r}; there is {names}")
        return channel


def _completed_text(state: TurnState) -> str:
    if state.outcome == "completed":
        return state.text
    if state.outcome == "cancelled":
        raise AgentError("The answer was stopped before it was complete.", code="cancelled")
    if state.error is None:
        raise AgentError("The answer was not completed.")
    raise AgentError(state.error.error, code=state.error.code, retryable=state.error.retryable)


class TurnStarter:
    """Starts turns for extensions: finds the session and adds what context providers know."""

    def __init__(self, store: Store, runner: TurnRunner, timeout: float) -> None:
        self._store = store
        self._runner = runner
        self._timeout = timeout
        self.providers: dict[str, ContextProvider] = {}
        """By the ids of their extensions."""

    async def start(
        self,
        text: str,
        *,
        principal: str,
        session: str,
        agent_id: str | None,
        channel: str,
        idempotency_key: str | None = None,
        files_key: str | None = None,
        on_busy: OnBusy = "enqueue",
    ) -> Accepted:
        """Start a turn, or return the one that this key has started. Raises what `TurnRunner.start` raises.

        `files_key` is the key with which `keep_files` has kept the files of the message, if it has some.
        """
        attachments, blobs = await self._kept_files(files_key) if files_key else ([], [])
        context = await self.context(text, agent_id)
        while True:
            session_id = await self._session_id(principal, session)
            request = TurnRequest(
                principal=principal,
                message=text,
                session_id=session_id,
                session_external_id=session if session_id is None else None,
                agent=agent_id,
                channel=channel,
                idempotency_key=idempotency_key,
                on_busy=on_busy,
                attachments=attachments,
                blobs=blobs,
                options={CONTEXT: context} if self.providers else {},
            )
            try:
                return await self._runner.start(request)
            except SessionExistsError:
                continue  # Another request has created it meanwhile.

    async def keep_files(self, key: str, principal: str, session: str, files: Sequence[Blob]) -> None:
        """Store the files of a message before its turn is started, in the session of that name. Raises StoreError."""
        session_id = (await self._store.ensure_session(principal, session, None))[0].id
        for blob in files:
            await self._store.put_blob(principal, session_id, blob, max_bytes=self._runner.max_session_file_bytes)
        value = msgspec.json.encode([blob.info for blob in files]).decode()
        annotation = Annotation(
            kind="message_files", key=key, principal=principal, at=now_ms(), value=value, session_id=session_id
        )
        await self._store.annotate(annotation)

    async def _kept_files(self, key: str) -> tuple[list[AttachedFile], list[Blob]]:
        annotation = await self._store.find_annotation("message_files", key)
        if annotation is None:
            return [], []
        attachments = msgspec.json.decode(annotation.value, type=list[AttachedFile])
        # The turn may be of a session that began after the message came.
        found = [await self._store.read_blob(annotation.session_id or "", file.digest or "") for file in attachments]
        return attachments, [blob for blob in found if blob is not None]

    async def _session_id(self, principal: str, session: str) -> str | None:
        try:
            return (await self._store.find_session(principal, session)).id
        except SessionNotFoundError:
            return None

    async def context(self, prompt: str, agent_id: str | None) -> str:
        """Return the context of all providers, without those that fail or take too long."""
        contexts = await asyncio.gather(
            *(self._context_of(name, provider, prompt, agent_id) for name, provider in self.providers.items())
        )
        return "\n\n".join(filter(None, contexts))

    async def _context_of(self, name: str, provider: ContextProvider, prompt: str, agent_id: str | None) -> str:
        try:
            context: Any = await call(self._timeout, provider.get_context, prompt, agent_id)
        except Exception as error:
            logger.warning("get_context of %r failed: %s; the turn starts without it", name, reason(error))
            return ""
        return context.strip() if isinstance(context, str) else ""


ProvideContext = Callable[[str, str | None], Awaitable[str]]


class ContextAgent:
    """An agent that reads the providers' context before the message. The log keeps the message as it was written.

    A turn that an extension started has its context already. `provide` returns the context of any other turn; without
    `provide`, other turns have no context.
    """

    def __init__(self, agent: Agent, provide: ProvideContext | None = None) -> None:
        self.agent = agent
        self._provide = provide

    def __getattr__(self, name: str) -> Any:
        """Return what the agent declares, such as `takes_model`. Raises AttributeError."""
        return getattr(self.agent, name)

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        context = turn.options.get(CONTEXT)
        if context is None and self._provide is not None:
            return self._answer_with_context(turn, self._provide)
        return self.agent.answer(_with_context(turn, context))

    async def _answer_with_context(self, turn: Turn, provide: ProvideContext) -> AsyncGenerator[Event | str]:
        answer = self.agent.answer(_with_context(turn, await provide(turn.message, turn.agent)))
        try:
            async for event in answer:
                yield event
        finally:
            if isinstance(answer, AsyncGenerator):
                await answer.aclose()


def _with_context(turn: Turn, context: str | None) -> Turn:
    return replace(turn, message=f"{context}\n\n{turn.message}") if context else turn
