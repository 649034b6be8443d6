"""Brings messages from channels to agents, and answers back. Everything an extension asks for comes through here.

A turn runs in the core and is committed there; what happens here only follows its log. So a slow, failing or hanging
channel costs the agent and the other channels nothing, a stop needs no lock, and what a crash interrupts is taken up
by the next process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from turnwire.core.codec import clean_text
from turnwire.core.contracts import Accepted, Agent, OnCrash, Store, repeats, resumes, takes_attachments
from turnwire.core.errors import (
    AgentError,
    NotFoundError,
    SessionExistsError,
    SessionNotFoundError,
    ShuttingDownError,
    TurnwireError,
)
from turnwire.core.events import Event
from turnwire.core.ids import new_id
from turnwire.core.runner import TurnRequest, TurnRunner
from turnwire.core.turns import Turn, TurnState
from turnwire.extensions.calls import Background, KernelLimits, call, reason
from turnwire.extensions.channels import Channel, TurnListener, error_text, final_text
from turnwire.extensions.contract import ContextProvider, OnChunk, OnToolCall, StreamStep
from turnwire.extensions.delivery import Delivery, DeliveryQueue, DeliveryRecords, PendingDelivery, UserQueue
from turnwire.extensions.events import EventBus

# Asks an agent in the name of somebody: finds their session, adds what extensions know, starts the turn.


logger = logging.getLogger("turnwire.extensions")

CONTEXT = "context"


class TurnStarter:
    def __init__(self, store: Store, runner: TurnRunner, timeout: float) -> None:
        self._store = store
        self._runner = runner
        self._timeout = timeout
        self.providers: dict[str, ContextProvider] = {}
        """By the ids of their extensions."""

    async def ask(
        self,
        text: str,
        *,
        principal: str,
        session: str,
        agent_id: str | None,
        channel: str,
        key: str | None = None,
    ) -> Accepted:
        """Starts a turn, or joins the one that this key has started. Raises what `TurnRunner.start` raises."""
        context = await self._context(text, agent_id)
        while True:
            session_id = await self._session_id(principal, session)
            request = TurnRequest(
                principal=principal,
                message=text,
                session_id=session_id,
                session_external_id=session if session_id is None else None,
                agent=agent_id,
                channel=channel,
                idempotency_key=key,
                options={CONTEXT: context} if context else {},
            )
            try:
                return await self._runner.start(request)
            except SessionExistsError:
                continue  # Somebody has made it meanwhile.

    async def _session_id(self, principal: str, session: str) -> str | None:
        try:
            return (await self._store.find_session(principal, session)).id
        except SessionNotFoundError:
            return None

    async def _context(self, prompt: str, agent_id: str | None) -> str:
        """What the extensions know about it. One that fails or is slow is done without."""
        found = await asyncio.gather(
            *(self._ask_provider(name, one, prompt, agent_id) for name, one in self.providers.items())
        )
        return "\n\n".join(filter(None, found))

    async def _ask_provider(self, name: str, provider: ContextProvider, prompt: str, agent_id: str | None) -> str:
        try:
            found: Any = await call(self._timeout, provider.get_context, prompt, agent_id)
        except Exception as error:
            logger.warning("get_context of %r failed: %s; the agent is asked without it", name, reason(error))
            return ""
        return found.strip() if isinstance(found, str) else ""


class EnrichedMessage:
    """An agent that reads, before the message, what extensions know about it. The log keeps the user's own words."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.takes_attachments = takes_attachments(agent)
        self.on_crash: OnCrash = "resume" if resumes(agent) else "close"

    def repeats(self, tool: str) -> bool:
        return repeats(self.agent, tool)

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        if context := turn.options.get(CONTEXT):
            turn = replace(turn, message=f"{context}\n\n{turn.message}")
        return self.agent.answer(turn)


# Asks an agent on an extension's own behalf, in a session of its own, and waits for the answer.


_OWN = "self"


class Invoker:
    def __init__(
        self, store: Store, runner: TurnRunner, asker: TurnStarter, deliveries: DeliveryRecords, background: Background
    ) -> None:
        self._store = store
        self._runner = runner
        self._asker = asker
        self._deliveries = deliveries
        self._background = background

    async def invoke(self, prompt: str, agent_id: str | None, owner: str, listener: TurnListener) -> str:
        session = await self._deliveries.conversation(owner, _OWN)
        starting = self._background.run(
            self._asker.ask(
                prompt.strip(), principal=f"extension:{owner}", session=session, agent_id=agent_id, channel=owner
            )
        )
        try:
            state = await listener.hear(self._store, (await asyncio.shield(starting)).record.id)
        except BaseException as error:
            # Nobody else waits for this answer.
            self._background.run(self._abandon(starting))
            if isinstance(error, TurnwireError) and not isinstance(error, AgentError):
                raise AgentError(str(error), code=error.code) from error
            raise
        return _completed(state)

    async def _abandon(self, starting: asyncio.Task[Accepted]) -> None:
        # It may have been accepted in the very moment that its caller left.
        with suppress(TurnwireError):
            await self._runner.cancel((await starting).record.id)


def _completed(state: TurnState) -> str:
    if state.outcome == "completed":
        return state.text
    if state.outcome == "cancelled":
        raise AgentError("The answer was stopped before it was complete.", code="cancelled")
    if state.error is None:
        raise AgentError("The answer was not completed.")
    raise AgentError(state.error.error, code=state.error.code, retryable=state.error.retryable)


T = TypeVar("T")


class MessageRouter:
    def __init__(
        self, store: Store, runner: TurnRunner, deliveries: DeliveryRecords, bus: EventBus, limits: KernelLimits
    ) -> None:
        self._store = store
        self._runner = runner
        self._deliveries = deliveries
        self._bus = bus
        self._limits = limits
        self._background = Background()
        self.channels: dict[str, Channel] = {}
        self.asker = TurnStarter(store, runner, limits.extension_timeout)
        self._carrier = DeliveryQueue(store, self.channels, deliveries, bus, limits)
        self._invoker = Invoker(store, runner, self.asker, deliveries, self._background)

    async def handle_user_message(
        self,
        text: str,
        user_id: str,
        channel: object,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        """Asks the agent, and brings the answer to the channel while it is made. Returns the answer's text.

        An answer that fails is a text too, and says why at its end. The caller may leave; the answer is brought all
        the same. Raises LookupError for a channel that is not registered, and ShuttingDownError when the answer is
        left to the next process.
        """
        known = self._channel_of(channel)
        text = clean_text(text).strip()
        if not text:
            return ""
        # Quoted, so that no two messages of different users can have one key.
        key = f"{known.id}:{user_id}:{quote(message_id or new_id(), safe='')}"
        principal = principal or f"{known.id}:{user_id}"
        errand = await self._apart(self._take(key, known.id, user_id, principal, agent_id, text))
        if isinstance(errand, str):
            return errand
        return await asyncio.shield(errand.text)

    async def invoke_agent(self, prompt: str, agent_id: str | None = None, *, owner: str = "kernel") -> str:
        """Asks the agent on an extension's own behalf, in a session of its own. Raises AgentError."""
        return await self._invoker.invoke(prompt, agent_id, owner, TurnListener())

    async def invoke_agent_streamed(
        self,
        prompt: str,
        on_chunk: OnChunk,
        on_tool_call: OnToolCall | None = None,
        agent_id: str | None = None,
        *,
        owner: str = "kernel",
    ) -> str:
        """The same, with the answer as it comes. The session is held until the end; callers of it wait their turn.

        What a callback raises ends the turn and is raised here.
        """

        async def chunk(text: str) -> None:
            await call(self._limits.channel_timeout, on_chunk, text)

        async def step(step: StreamStep) -> None:
            if on_tool_call is not None and step.kind == "tool" and step.phase == "started":
                await call(self._limits.channel_timeout, on_tool_call, step.name)

        return await self._invoker.invoke(prompt, agent_id, owner, TurnListener(chunk, step))

    async def cancel(self, channel_id: str, user_id: str) -> bool:
        """Stops what is answered for this user and what waits behind it. It takes no lock, so nothing is in its way."""
        errands = [errand for errand in self._carrier.errands(channel_id, user_id) if not errand.has_ended]
        for errand in errands:
            # One that is only being started is stopped as soon as it has a turn.
            errand.is_cancelled = True
        turns = [errand.delivery.turn_id for errand in errands]
        await asyncio.gather(*(self._runner.cancel(turn_id) for turn_id in turns if turn_id is not None))
        return bool(errands)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        """Raises TurnwireError for a decision that cannot be taken any more."""
        await self._runner.decide(turn_id, call_id, approved=approved, by=by, reason=reason)

    async def new_session(self, channel_id: str, user_id: str) -> None:
        await self._deliveries.new_conversation(channel_id, user_id)

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        await self._channel(channel_id).send_to_user(user_id, message)

    async def send_message(self, channel_id: str, message: str) -> None:
        await self._channel(channel_id).send_message(message)

    def resume(self) -> None:
        """Takes up what an earlier process has not brought, for the channels that are there. Nobody waits for it."""
        self._background.run(self._resume())

    async def close(self) -> None:
        patience = self._limits.closing_patience
        await self._background.close(patience)
        await self._carrier.close(patience)

    async def _resume(self) -> None:
        for delivery in await self._deliveries.undelivered():
            if delivery.channel_id not in self.channels:
                continue
            try:
                async with self._carrier.taking(delivery.channel_id, delivery.user_id) as lane:
                    if not self._underway(delivery):
                        await self._begin(lane, delivery, is_resumed=True)
            except Exception:
                logger.exception("the answer %s could not be taken up", delivery.key)

    async def _take(
        self, key: str, channel_id: str, user_id: str, principal: str, agent_id: str | None, text: str
    ) -> PendingDelivery | str:
        """The errand of a message, or the answer of one that has had its answer."""
        async with self._carrier.taking(channel_id, user_id) as lane:
            delivery, is_new = await self._deliveries.take(
                key, channel_id, user_id, principal=principal, agent_id=agent_id, text=text
            )
            self._bus.wake()
            if is_new:
                return await self._begin(lane, delivery)
            if delivery.delivered_at is not None:
                return await self._past_answer(delivery)
            return self._underway(delivery) or await self._begin(lane, delivery, is_resumed=True)

    async def _begin(self, lane: UserQueue, delivery: Delivery, *, is_resumed: bool = False) -> PendingDelivery:
        """Starts the turn, unless it was started before, and puts its answer on the way."""
        errand = PendingDelivery(delivery, is_resumed=is_resumed)
        lane.errands.append(errand)
        try:
            if delivery.turn_id is None:
                await self._start(errand)
        except ShuttingDownError:
            # It is written down: the next process answers it.
            lane.errands.remove(errand)
            raise
        except TurnwireError as error:
            errand.refusal = error_text(str(error))
        except BaseException:
            lane.errands.remove(errand)
            raise
        self._carrier.carry(errand)
        return errand

    async def _start(self, errand: PendingDelivery) -> None:
        delivery = errand.delivery
        accepted = await self.asker.ask(
            delivery.text,
            principal=delivery.principal,
            session=delivery.session,
            agent_id=delivery.agent_id,
            channel=delivery.channel_id,
            key=delivery.key,
        )
        errand.delivery = replace(delivery, turn_id=accepted.record.id)
        await self._deliveries.started(errand.delivery)
        if errand.is_cancelled:
            await self._runner.cancel(accepted.record.id)

    def _underway(self, delivery: Delivery) -> PendingDelivery | None:
        errands = self._carrier.errands(delivery.channel_id, delivery.user_id)
        return next((errand for errand in errands if errand.delivery.key == delivery.key), None)

    async def _past_answer(self, delivery: Delivery) -> str:
        try:
            state = await self._store.turn_state(delivery.turn_id) if delivery.turn_id else None
        except NotFoundError:
            return ""  # Its session was deleted.
        return final_text(state) if state else ""

    def _channel_of(self, channel: object) -> Channel:
        for known in self.channels.values():
            if known.extension is channel:
                return known
        raise LookupError(f"{type(channel).__name__} is not registered as a channel: it has no send_to_user, or failed")

    def _channel(self, channel_id: str) -> Channel:
        channel = self.channels.get(channel_id)
        if channel is None:
            there = ", ".join(self.channels) or "none at all"
            raise LookupError(f"there is no channel {channel_id!r}; there is {there}")
        return channel

    async def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        """In a task of its own: whoever waits for it may be cancelled without breaking it off in the middle."""
        task = self._background.run(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDownError from None
            raise
