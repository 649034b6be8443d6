"""The side of a channel that Turnwire has: bounded calls to it, and the log of a turn turned into those calls."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from turnwire.core.contracts.stores import Store
from turnwire.core.errors import EventsGoneError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    HandoffEvent,
    InputEvent,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnState
from turnwire.extensions.calls import call, reason
from turnwire.extensions.contract import (
    STOPPED,
    ApprovalAsk,
    Channel,
    ChannelProvider,
    QuestionAsk,
    StreamingChannel,
    StreamingChannelProvider,
    StreamStep,
    with_note,
)

logger = logging.getLogger("turnwire.extensions")

EMPTY = "(The answer is empty.)"
NO_AGENT = "(No agent configured.)"
_MAX_FAILURES = 3
_MAX_SUMMARY_CHARS = 120


class ChannelHost:
    """One extension's channel in the runtime. `streaming` is None for a channel that gets whole answers."""

    def __init__(self, id: str, provider: ChannelProvider, *, is_streaming: bool, timeout: float) -> None:
        self.id = id
        self.timeout = timeout
        self.channel = _as_channel(provider)
        self.streaming = self.channel if is_streaming and isinstance(self.channel, StreamingChannel) else None

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Send a message to a user. Raises what the channel raises, and TimeoutError."""
        await call(self.timeout, self.channel.send_to_user, user_id, message)

    async def send_message(self, message: str) -> None:
        """Send a message to the channel's default user. Raises what the channel raises, and TimeoutError."""
        await call(self.timeout, self.channel.send_message, message)

    async def wait_for_delivery(self, user_id: str) -> None:
        """Wait until the channel has posted the answers that it has taken for this user."""
        try:
            await self.channel.wait_for_delivery(user_id)
        except Exception as error:
            logger.warning("wait_for_delivery of channel %r failed: %s", self.id, reason(error))


def _as_channel(provider: ChannelProvider) -> Channel:
    """Return the channel of an extension, which may fit the protocols without deriving from `Channel`."""
    if isinstance(provider, Channel):
        return provider
    if isinstance(provider, StreamingChannelProvider):
        return _ProvidedStreamingChannel(provider, provider)
    return _ProvidedChannel(provider)


class _ProvidedChannel(Channel):
    """A channel of an extension that fits `ChannelProvider` alone."""

    def __init__(self, provider: ChannelProvider) -> None:
        self._provider = provider

    async def send_to_user(self, user_id: str, message: str) -> None:
        await self._provider.send_to_user(user_id, message)

    async def send_message(self, message: str) -> None:
        await self._provider.send_message(message)


class _ProvidedStreamingChannel(_ProvidedChannel, StreamingChannel):
    """A channel of an extension that fits `StreamingChannelProvider` too."""

    def __init__(self, provider: ChannelProvider, streaming: StreamingChannelProvider) -> None:
        super().__init__(provider)
        self._streaming = streaming

    async def on_stream_start(self, user_id: str) -> None:
        await self._streaming.on_stream_start(user_id)

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        await self._streaming.on_stream_chunk(user_id, chunk)

    async def on_stream_status(self, user_id: str, status: str) -> None:
        await self._streaming.on_stream_status(user_id, status)

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        await self._streaming.on_stream_end(user_id, full_text)


class TurnListener:
    """The callbacks of `follow_turn`, in the order of the log. Every method does nothing by default."""

    async def send_chunk(self, text: str) -> None:
        """Take a piece of the answer."""

    async def send_step(self, step: StreamStep) -> None: ...

    async def restart(self, text: str) -> bool:
        """Take back all but this text, and return True. After False, the repeated part comes again."""
        return False

    async def request_approval(self, ask: ApprovalAsk) -> None: ...

    async def ask_question(self, ask: QuestionAsk) -> None: ...

    async def close_question(self, ask: QuestionAsk) -> None: ...


class ChannelStream(TurnListener):
    """One answer on one channel while it is made.

    A channel method that fails is logged and changes only what is seen meanwhile. After one that hangs, or several that
    fail, the channel gets only approval requests, questions and the end of the answer.
    """

    def __init__(self, host: ChannelHost, user_id: str) -> None:
        self._host = host
        self._channel = host.channel
        self._streaming = host.streaming
        self._user_id = user_id
        self._failures = 0

    async def start(self) -> None:
        if self._streaming:
            await self._call(self._streaming.on_stream_start)

    async def send_chunk(self, text: str) -> None:
        if self._streaming:
            await self._call(self._streaming.on_stream_chunk, text)

    async def send_step(self, step: StreamStep) -> None:
        if self._streaming:
            await self._call(self._streaming.on_stream_step, step)

    async def restart(self, text: str) -> bool:
        """Ask the channel to show only this text. Return True if it does."""
        return self._streaming is not None and await self._call(self._streaming.on_stream_restart, text)

    async def request_approval(self, ask: ApprovalAsk) -> None:
        """Show the request even after other calls have failed: the turn waits for the decision."""
        if not await self._call(self._channel.on_approval_request, ask, always=True):
            await self._show_line(f"Waiting for approval: {ask.tool}")

    async def ask_question(self, ask: QuestionAsk) -> None:
        """Show the question even after other calls have failed: the turn waits for the reply."""
        if not await self._call(self._channel.on_question, ask, always=True):
            await self._show_line(f"Question: {_short(ask.prompt)}")

    async def close_question(self, ask: QuestionAsk) -> None:
        await self._call(self._channel.on_question_closed, ask, always=True)

    async def _show_line(self, line: str) -> None:
        streaming = self._streaming
        if streaming is None or not await self._call(streaming.on_stream_step, status_step(line), always=True):
            await self.send(line)

    async def end(self, full_text: str, *, cancelled_text: str | None) -> bool:
        """Deliver the whole answer, falling back to `send_to_user`. Return False if neither worked.

        `cancelled_text` is the partial answer of a cancelled turn, and None for any other.
        """
        if streaming := self._streaming:
            if cancelled_text is not None:
                is_taken = await self._call(streaming.on_stream_cancel, cancelled_text, always=True)
            else:
                is_taken = await self._call(streaming.on_stream_end, full_text, always=True)
            if is_taken:
                return True
        return await self.send(full_text)

    async def send(self, text: str) -> bool:
        """Return False if the channel failed to take the text."""
        return await self._call(self._channel.send_to_user, text, always=True)

    async def _call(self, method: Callable[..., Awaitable[object]], *args: Any, always: bool = False) -> bool:
        """Return False if the channel failed, or says that it cannot do this."""
        if self._failures >= _MAX_FAILURES and not always:
            return False
        name = getattr(method, "__name__", "a method")
        try:
            return await call(self._host.timeout, method, self._user_id, *args) is not False
        except TimeoutError as error:
            self._failures = _MAX_FAILURES
            logger.warning("%s of channel %r: %s", name, self._host.id, reason(error))
            return False
        except Exception as error:
            self._failures += 1
            logger.warning("%s of channel %r failed: %s", name, self._host.id, reason(error))
            logger.debug("%s of channel %r failed", name, self._host.id, exc_info=True)
            return False


async def follow_turn(store: Store, turn_id: str, listener: TurnListener) -> TurnState:
    """Follow the turn to its end and return its final state. Raises what reading the log and the listener raise."""
    return await _TurnReader(turn_id, listener).read(store)


class _TurnReader:
    """Reads a turn's log for a listener.

    The pieces of one batch of events are joined, so a slow listener gets fewer and longer ones.
    """

    def __init__(self, turn_id: str, listener: TurnListener) -> None:
        self._turn_id = turn_id
        self._listener = listener
        self._questions: dict[str, QuestionAsk] = {}
        """The questions without a reply, by their ids."""
        self._tools: dict[str, str] = {}
        """The names of tools by the ids of their calls, which later events lack."""
        self._fold = TurnFold()
        self._buffer: list[str] = []
        self._sent_chars = 0

    async def read(self, store: Store) -> TurnState:
        final_state = await store.turn_state(self._turn_id)
        try:
            async with aclosing(follow(store, self._turn_id)) as batches:
                async for batch in batches:
                    decided = _decided(batch)
                    for logged in batch:
                        await self._handle(logged, decided)
                    await self._flush()
            for ask in self._questions.values():
                await self._listener.close_question(ask)
        except EventsGoneError:
            if final_state is None:
                raise
            return final_state
        return self._fold.state()

    async def _handle(self, logged: LoggedEvent, decided: Mapping[str, int]) -> None:
        event = logged.event
        self._fold.add(logged)
        match event:
            case TokenEvent():
                if not event.agent_path:
                    self._buffer.append(event.content)
            case RestartEvent():
                await self._restart()
            case ApprovalRequestEvent():
                self._tools[event.call_id] = event.tool
                if decided.get(event.call_id, 0) > logged.position:
                    return  # It was decided before there was time to ask.
                await self._flush()
                ask = ApprovalAsk(
                    turn_id=self._turn_id,
                    call_id=event.call_id,
                    tool=event.tool,
                    args=event.args,
                    reason=event.reason,
                    position=logged.position,
                )
                await self._listener.request_approval(ask)
            case QuestionEvent():
                await self._flush()
                question = QuestionAsk(
                    turn_id=self._turn_id, question_id=event.id, prompt=event.prompt, schema=event.schema
                )
                self._questions[event.id] = question
                if event.id not in decided:
                    await self._listener.ask_question(question)
            case ReplyEvent():
                if (closed := self._questions.pop(event.question_id, None)) is not None:
                    await self._listener.close_question(closed)
            case _:
                if isinstance(event, ToolCallEvent):
                    self._tools[event.call_id] = event.tool
                if (step := _step(logged, self._tools)) is not None:
                    await self._flush()
                    await self._listener.send_step(step)

    async def _flush(self) -> None:
        if self._buffer:
            text, self._buffer = "".join(self._buffer), []
            self._sent_chars += len(text)
            await self._listener.send_chunk(text)

    async def _restart(self) -> None:
        """Take back the text that a restart made void, if the channel can; the end has the whole answer in any case."""
        text = self._fold.text
        if self._sent_chars > len(text) and await self._listener.restart(text):
            self._sent_chars = len(text)
        self._buffer = [text[self._sent_chars :]] if len(text) > self._sent_chars else []
        self._sent_chars = min(self._sent_chars, len(text))
        await self._listener.send_step(status_step("Starting again"))


def _decided(batch: Sequence[LoggedEvent]) -> dict[str, int]:
    """Return the positions of the answers in this batch, by the ids of their calls and questions."""
    answers: dict[str, int] = {}
    for logged in batch:
        match logged.event:
            case ApprovalResponseEvent(call_id=answered) | ReplyEvent(question_id=answered):
                answers[answered] = logged.position
            case _:
                pass
    return answers


def _step(logged: LoggedEvent, tools: Mapping[str, str]) -> StreamStep | None:
    """Return the step that the event reports, or None if it reports none. `tools` are the names by the ids of calls."""
    match event := logged.event:
        case ToolCallEvent():
            arguments = _short(event.args) if event.args else None
            return StreamStep(id=event.call_id, kind="tool", name=event.tool, phase="started", summary=arguments)
        case ToolProgressEvent():
            return StreamStep(
                id=event.call_id,
                kind="tool",
                name=tools.get(event.call_id, "tool"),
                phase="progress",
                summary=event.text,
                fraction=event.fraction,
            )
        case ToolResultEvent():
            phase = "finished" if event.success else "failed"
            summary = _short(event.result) if event.result is not None else None
            return StreamStep(
                id=event.call_id, kind="tool", name=event.tool, phase=phase, summary=summary, elapsed_ms=event.ms
            )
        case SearchEvent():
            summary = event.query if event.hits is None else f"{event.query} ({len(event.hits)} found)"
            return StreamStep(
                id=event.step_id,
                kind="search",
                name=event.tool,
                phase=event.phase,
                summary=summary,
                elapsed_ms=event.ms,
            )
        case ReviewEvent():
            summary = event.feedback or event.verdict
            return StreamStep(id=event.step_id, kind="review", name="review", phase="finished", summary=summary)
        case HandoffEvent():
            return StreamStep(id=f"handoff-{logged.position}", kind="handoff", name=event.agent, phase="finished")
        case InputEvent():
            return status_step(f"Added: {_short(event.content)}")
        case StatusEvent():
            return status_step(event.text)
        case ApprovalResponseEvent():
            verdict = "Approved" if event.approved else "Denied"
            return status_step(f"{verdict}: {tools.get(event.call_id, 'tool')}")
        case _:
            return None


def status_step(text: str) -> StreamStep:
    """Return a status line as a step. It has no end; the next one replaces it."""
    return StreamStep(id="status", kind="status", name=text, phase="progress", summary=text)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SUMMARY_CHARS else line[: _MAX_SUMMARY_CHARS - 1] + "…"


def final_text(state: TurnState) -> str:
    """Return the answer of an ended turn, with the reason at its end if it is not complete."""
    match state.outcome:
        case "completed":
            return state.text or EMPTY
        case "joined":
            return ""
        case "cancelled":
            return with_note(state.text, STOPPED)
        case _:
            return with_note(
                state.text, error_text(state.error.error if state.error else "the answer was not completed")
            )


def error_text(message: str) -> str:
    return f"(Error: {message})"
