"""A channel as the kernel calls it: within limits, and never so that a failure reaches anybody else."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Store
from turnwire.core.errors import EventsGoneError
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
    HandoffEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.follow import follow
from turnwire.core.state import TurnFold
from turnwire.core.turns import TurnState
from turnwire.extensions.calls import call, reason
from turnwire.extensions.contract import (
    ApprovalAsk,
    ApprovalChannel,
    CancellableChannel,
    ChannelProvider,
    RestartableChannel,
    StepChannel,
    StreamingChannelProvider,
    StreamStep,
)

# What channels are told of an agent's work: events of the log as steps, and steps as lines.


_SUMMARY_LENGTH = 120


class Steps:
    """Makes the steps of one turn. It keeps the names of running tools, which their progress does not say."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def asked(self, event: ApprovalRequestEvent) -> None:
        self._tools[event.call_id] = event.tool

    def step(self, logged: LoggedEvent) -> StreamStep | None:
        event: Event = logged.event
        match event:
            case ToolCallEvent():
                self._tools[event.call_id] = event.tool
                arguments = _short(event.args) if event.args else None
                return StreamStep(id=event.call_id, kind="tool", name=event.tool, phase="started", summary=arguments)
            case ToolProgressEvent():
                return StreamStep(
                    id=event.call_id,
                    kind="tool",
                    name=self._tools.get(event.call_id, "tool"),
                    phase="progress",
                    summary=event.text,
                    fraction=event.fraction,
                )
            case ToolResultEvent():
                phase = "finished" if event.success else "failed"
                told = _short(event.result) if event.result is not None else None
                return StreamStep(
                    id=event.call_id, kind="tool", name=event.tool, phase=phase, summary=told, elapsed_ms=event.ms
                )
            case SearchEvent():
                told = event.query if event.hits is None else f"{event.query} ({len(event.hits)} found)"
                return StreamStep(
                    id=event.step_id,
                    kind="search",
                    name=event.tool,
                    phase=event.phase,
                    summary=told,
                    elapsed_ms=event.ms,
                )
            case ReviewEvent():
                told = event.feedback or event.verdict
                return StreamStep(id=event.step_id, kind="review", name="review", phase="finished", summary=told)
            case HandoffEvent():
                return StreamStep(id=f"handoff-{logged.position}", kind="handoff", name=event.agent, phase="finished")
            case StatusEvent():
                return status_step(event.text)
            case ApprovalResponseEvent():
                verdict = "Approved" if event.approved else "Denied"
                return status_step(f"{verdict}: {self._tools.get(event.call_id, 'tool')}")
            case _:
                return None


def status_step(text: str) -> StreamStep:
    """A line on its own. It has no end; the next one takes its place."""
    return StreamStep(id="status", kind="status", name=text, phase="progress", summary=text)


def status_line(step: StreamStep) -> str | None:
    """A step as one line; None for what a line would only repeat."""
    match step.kind, step.phase:
        case "tool", "started":
            return f"Using: {step.name}"
        case "tool", "progress":
            return f"{step.name}: {step.summary}" if step.summary else None
        case _, "failed":
            return f"Failed: {step.name}"
        case "search", "started":
            return f"Searching: {step.summary}"
        case "review", _:
            return f"Reviewed: {step.summary}"
        case "handoff", _:
            return f"Handing over to: {step.name}"
        case "status", _:
            return step.name
        case _:
            return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text.split())
    return line if len(line) <= _SUMMARY_LENGTH else line[: _SUMMARY_LENGTH - 1] + "…"


logger = logging.getLogger("turnwire.extensions")

_MOST_FAILURES = 3


class Channel:
    """One extension's channel. `provides` is what was detected of it, not what it looks like."""

    def __init__(self, id: str, extension: Any, provides: frozenset[str], *, streams: bool, timeout: float) -> None:
        self.id = id
        self.streams = streams and "streaming_channel" in provides
        self.timeout = timeout
        self.extension: ChannelProvider = extension
        self._provides = provides

    def show(self, user_id: str) -> "Showing":
        return Showing(self, user_id)

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Raises what the channel raises, and TimeoutError."""
        await call(self.timeout, self.extension.send_to_user, user_id, message)

    async def send_message(self, message: str) -> None:
        await call(self.timeout, self.extension.send_message, message)

    @property
    def streaming(self) -> StreamingChannelProvider | None:
        return self.extension if self.streams else None  # pyright: ignore[reportReturnType]

    @property
    def stepping(self) -> StepChannel | None:
        return self.extension if self.streams and "step_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def cancelling(self) -> CancellableChannel | None:
        return self.extension if self.streams and "cancellable_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def restarting(self) -> RestartableChannel | None:
        return self.extension if self.streams and "restartable_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def approving(self) -> ApprovalChannel | None:
        return self.extension if "approval_channel" in self._provides else None  # pyright: ignore[reportReturnType]


class Showing:
    """One answer on one channel while it is made. A method that fails is logged and changes nothing but what is seen
    meanwhile; after one that hangs, or several that fail, there is nothing more until the end.
    """

    def __init__(self, channel: Channel, user_id: str) -> None:
        self._channel = channel
        self._user_id = user_id
        self._failures = 0

    async def start(self) -> None:
        if streaming := self._channel.streaming:
            await self._attempt(streaming.on_stream_start)

    async def chunk(self, text: str) -> None:
        if streaming := self._channel.streaming:
            await self._attempt(streaming.on_stream_chunk, text)

    async def step(self, step: StreamStep) -> None:
        if stepping := self._channel.stepping:
            await self._attempt(stepping.on_stream_step, step)
        elif line := status_line(step):
            await self.status(line)

    async def status(self, line: str) -> None:
        if streaming := self._channel.streaming:
            await self._attempt(streaming.on_stream_status, line)

    async def restart(self, text: str) -> bool:
        """Whether only this text is shown now."""
        restarting = self._channel.restarting
        return restarting is not None and await self._attempt(restarting.on_stream_restart, text)

    async def ask(self, ask: ApprovalAsk) -> None:
        """Asked also when other calls have failed: somebody waits for the answer."""
        line = f"Waiting for approval: {ask.tool}"
        if approving := self._channel.approving:
            if not await self._attempt(approving.on_approval_request, ask, always=True):
                await self._attempt(self._channel.extension.send_to_user, line, always=True)
        elif self._channel.streams:
            await self.status(line)
        else:
            await self._attempt(self._channel.extension.send_to_user, line, always=True)

    async def end(self, full_text: str, *, cancelled_text: str | None) -> bool:
        """Brings the whole answer, by one way or another. False if none worked.

        `cancelled_text` is given when the answer was stopped: what there was of it.
        """
        cancelling, streaming = self._channel.cancelling, self._channel.streaming
        if cancelled_text is not None and cancelling:
            if await self._attempt(cancelling.on_stream_cancel, cancelled_text, always=True):
                return True
        elif streaming and await self._attempt(streaming.on_stream_end, full_text, always=True):
            return True
        return await self.send(full_text)

    async def send(self, text: str) -> bool:
        return await self._attempt(self._channel.extension.send_to_user, text, always=True)

    async def _attempt(self, method: Callable[..., Awaitable[None]], *args: Any, always: bool = False) -> bool:
        if self._failures >= _MOST_FAILURES and not always:
            return False
        name = getattr(method, "__name__", "a method")
        try:
            await call(self._channel.timeout, method, self._user_id, *args)
        except TimeoutError as error:
            self._failures = _MOST_FAILURES
            logger.warning("%s of channel %r: %s", name, self._channel.id, reason(error))
            return False
        except Exception as error:
            self._failures += 1
            logger.warning("%s of channel %r failed: %s", name, self._channel.id, reason(error))
            logger.debug("%s of channel %r failed", name, self._channel.id, exc_info=True)
            return False
        return True


# Follows a turn's log for somebody who may be slow.


Chunk = Callable[[str], Awaitable[None]]
Step = Callable[[StreamStep], Awaitable[None]]
Ask = Callable[[ApprovalAsk], Awaitable[None]]
Restart = Callable[[str], Awaitable[bool]]


async def nothing(_: object) -> None:
    """For those who do not want to know."""


async def cannot(_: object) -> bool:
    """For those who cannot take back what they have said."""
    return False


class TurnListener:
    """Tells what happens in a turn, in order: pieces of the answer, steps, and what a person must decide."""

    def __init__(
        self, on_chunk: Chunk = nothing, on_step: Step = nothing, on_ask: Ask = nothing, on_restart: Restart = cannot
    ) -> None:
        self._on_chunk = on_chunk
        self._on_step = on_step
        self._on_ask = on_ask
        self._on_restart = on_restart
        self._fold = TurnFold()
        self._steps = Steps()
        self._pieces: list[str] = []
        self._told = 0

    async def hear(self, store: Store, turn_id: str) -> TurnState:
        """Returns what the turn has come to when it has ended. Raises what reading the log raises."""
        ended = await store.turn_state(turn_id)
        try:
            async with aclosing(follow(store, turn_id)) as batches:
                async for batch in batches:
                    decided = {
                        event.call_id: logged.position
                        for logged in batch
                        if isinstance(event := logged.event, ApprovalResponseEvent)
                    }
                    for logged in batch:
                        await self._take(turn_id, logged, decided)
                    await self._flush()
        except EventsGoneError:
            if ended is None:
                raise
            return ended
        return self._fold.state()

    async def _take(self, turn_id: str, logged: LoggedEvent, decided: Mapping[str, int]) -> None:
        event = logged.event
        self._fold.add(logged)
        if isinstance(event, TokenEvent):
            if not event.agent_path:
                self._pieces.append(event.content)
        elif isinstance(event, RestartEvent):
            await self._restart()
        elif isinstance(event, ApprovalRequestEvent):
            self._steps.asked(event)
            if decided.get(event.call_id, 0) > logged.position:
                return  # It was decided before there was time to ask.
            await self._flush()
            ask = ApprovalAsk(
                turn_id=turn_id,
                call_id=event.call_id,
                tool=event.tool,
                args=event.args,
                reason=event.reason,
                position=logged.position,
            )
            await self._on_ask(ask)
        elif step := self._steps.step(logged):
            await self._flush()
            await self._on_step(step)

    async def _flush(self) -> None:
        if self._pieces:
            text, self._pieces = "".join(self._pieces), []
            self._told += len(text)
            await self._on_chunk(text)

    async def _restart(self) -> None:
        """What was told is taken back where that can be done. In any case the end tells all of it as it is."""
        text = self._fold.text
        if self._told > len(text) and await self._on_restart(text):
            self._told = len(text)
        self._pieces = [text[self._told :]] if len(text) > self._told else []
        self._told = min(self._told, len(text))
        await self._on_step(status_step("Starting again"))


# An ended turn in words: the answer, with why it is not whole at its end.


EMPTY = "(The answer is empty.)"
STOPPED = "(Stopped.)"


def final_text(state: TurnState) -> str:
    match state.outcome:
        case "completed":
            return state.text or EMPTY
        case "cancelled":
            return _with(state.text, STOPPED)
        case _:
            return _with(state.text, error_text(state.error.error if state.error else "the answer was not completed"))


def error_text(message: str) -> str:
    return f"(Error: {message})"


def _with(text: str, note: str) -> str:
    return f"{text}\n\n{note}" if text else note
