"""The kernel's side of a channel: bounded calls to it, and the log of a turn turned into those calls."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from turnwire.core.contracts.stores import OnBusy, Store
from turnwire.core.errors import EventsGoneError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
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
    ApprovalAsk,
    ApprovalChannel,
    CancellableChannel,
    ChannelProvider,
    OnChunk,
    QuestionAsk,
    QuestionChannel,
    RestartableChannel,
    StepChannel,
    StreamingChannelProvider,
    StreamStep,
)

logger = logging.getLogger("turnwire.extensions")

EMPTY = "(The answer is empty.)"
NO_AGENT = "(No agent configured.)"
STOPPED = "(Stopped.)"
_MAX_FAILURES = 3
_MAX_SUMMARY_CHARS = 120


class Channel:
    """One extension's channel. `provides` holds the abilities that were detected in it."""

    def __init__(
        self, id: str, extension: Any, provides: frozenset[str], *, is_streaming: bool, timeout: float
    ) -> None:
        self.id = id
        self.is_streaming = is_streaming and "streaming_channel" in provides
        self.timeout = timeout
        self.extension: ChannelProvider = extension
        self._provides = provides

    @property
    def on_busy(self) -> OnBusy:
        """Return what happens to a message that comes while the user's last one is being answered."""
        choice: object = getattr(self.extension, "on_busy", None)
        return choice if choice in ("steer", "collect", "interrupt") else "enqueue"

    def open_stream(self, user_id: str) -> "ChannelStream":
        return ChannelStream(self, user_id)

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Send a message to a user. Raises what the channel raises, and TimeoutError."""
        await call(self.timeout, self.extension.send_to_user, user_id, message)

    async def send_message(self, message: str) -> None:
        """Send a message to the channel's default user. Raises what the channel raises, and TimeoutError."""
        await call(self.timeout, self.extension.send_message, message)

    async def wait_for_delivery(self, user_id: str) -> None:
        """Wait until a buffered channel has posted the answers that it has taken for this user."""
        if "buffered_channel" not in self._provides:
            return
        extension: Any = self.extension
        try:
            await extension.wait_for_delivery(user_id)
        except Exception as error:
            logger.warning("wait_for_delivery of channel %r failed: %s", self.id, reason(error))

    @property
    def streaming(self) -> StreamingChannelProvider | None:
        return self.extension if self.is_streaming else None  # pyright: ignore[reportReturnType]

    @property
    def stepping(self) -> StepChannel | None:
        return self.extension if self.is_streaming and "step_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def cancelling(self) -> CancellableChannel | None:
        return self.extension if self.is_streaming and "cancellable_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def restarting(self) -> RestartableChannel | None:
        return self.extension if self.is_streaming and "restartable_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def approving(self) -> ApprovalChannel | None:
        return self.extension if "approval_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def questioning(self) -> QuestionChannel | None:
        return self.extension if "question_channel" in self._provides else None  # pyright: ignore[reportReturnType]


class ChannelStream:
    """One answer on one channel while it is made.

    A channel method that fails is logged and changes only what is seen meanwhile. After one that hangs, or several that
    fail, the channel gets only approval requests, questions and the end of the answer.
    """

    def __init__(self, channel: Channel, user_id: str) -> None:
        self._channel = channel
        self._user_id = user_id
        self._failures = 0

    async def start(self) -> None:
        if streaming := self._channel.streaming:
            await self._call(streaming.on_stream_start)

    async def send_chunk(self, text: str) -> None:
        if streaming := self._channel.streaming:
            await self._call(streaming.on_stream_chunk, text)

    async def send_step(self, step: StreamStep) -> None:
        await self._send_step(step)

    async def restart(self, text: str) -> bool:
        """Ask the channel to show only this text. Return True if it does."""
        restarting = self._channel.restarting
        return restarting is not None and await self._call(restarting.on_stream_restart, text)

    async def request_approval(self, ask: ApprovalAsk) -> None:
        """Show the request even after other calls have failed: the turn waits for the decision."""
        approving = self._channel.approving
        await self._request(approving.on_approval_request if approving else None, ask, _waiting_line(ask))

    async def ask_question(self, ask: QuestionAsk) -> None:
        """Show the question even after other calls have failed: the turn waits for the reply."""
        questioning = self._channel.questioning
        method = questioning.on_question if questioning else None
        await self._request(method, ask, f"Question: {_short(ask.prompt)}")

    async def close_question(self, ask: QuestionAsk) -> None:
        if questioning := self._channel.questioning:
            await self._call(questioning.on_question_closed, ask, always=True)

    async def _request(self, method: Callable[..., Awaitable[None]] | None, ask: object, line: str) -> None:
        if method is not None:
            is_shown = await self._call(method, ask, always=True)
        else:
            is_shown = await self._send_step(status_step(line), always=True)
        if not is_shown:
            await self.send(line)

    async def end(self, full_text: str, *, cancelled_text: str | None) -> bool:
        """Deliver the whole answer, falling back to `send_to_user`. Return False if neither worked.

        `cancelled_text` is the partial answer of a cancelled turn, and None for any other.
        """
        cancelling, streaming = self._channel.cancelling, self._channel.streaming
        if cancelled_text is not None and cancelling:
            if await self._call(cancelling.on_stream_cancel, cancelled_text, always=True):
                return True
        elif streaming and await self._call(streaming.on_stream_end, full_text, always=True):
            return True
        return await self.send(full_text)

    async def send(self, text: str) -> bool:
        """Return False if the channel failed to take the text."""
        return await self._call(self._channel.extension.send_to_user, text, always=True)

    async def _send_step(self, step: StreamStep, *, always: bool = False) -> bool:
        """Return False if the channel does not show steps, or failed to show this one."""
        if stepping := self._channel.stepping:
            return await self._call(stepping.on_stream_step, step, always=always)
        streaming, line = self._channel.streaming, status_line(step)
        if streaming is None or line is None:
            return False
        return await self._call(streaming.on_stream_status, line, always=always)

    async def _call(self, method: Callable[..., Awaitable[None]], *args: Any, always: bool = False) -> bool:
        if self._failures >= _MAX_FAILURES and not always:
            return False
        name = getattr(method, "__name__", "a method")
        try:
            await call(self._channel.timeout, method, self._user_id, *args)
        except TimeoutError as error:
            self._failures = _MAX_FAILURES
            logger.warning("%s of channel %r: %s", name, self._channel.id, reason(error))
            return False
        except Exception as error:
            self._failures += 1
            logger.warning("%s of channel %r failed: %s", name, self._channel.id, reason(error))
            logger.debug("%s of channel %r failed", name, self._channel.id, exc_info=True)
            return False
        return True


OnStep = Callable[[StreamStep], Awaitable[None]]
OnApproval = Callable[[ApprovalAsk], Awaitable[None]]
OnQuestion = Callable[[QuestionAsk], Awaitable[None]]
OnRestart = Callable[[str], Awaitable[bool]]


async def _ignore(_: object) -> None:
    pass


async def _cannot_restart(_: str) -> bool:
    return False


class TurnListener:
    """A reader of a turn's log that calls back in order: pieces of the answer, steps, approval requests and questions.

    The pieces of one batch of events are joined, so a slow callback gets fewer and longer ones.
    """

    def __init__(
        self,
        on_chunk: OnChunk = _ignore,
        on_step: OnStep = _ignore,
        on_approval: OnApproval = _ignore,
        on_restart: OnRestart = _cannot_restart,
        on_question: OnQuestion = _ignore,
        on_question_closed: OnQuestion = _ignore,
    ) -> None:
        self._on_chunk = on_chunk
        self._on_step = on_step
        self._on_approval = on_approval
        self._on_restart = on_restart
        self._on_question = on_question
        self._on_question_closed = on_question_closed
        self._questions: dict[str, QuestionAsk] = {}
        """The questions without a reply, by their ids."""
        self._fold = TurnFold()
        self._steps = StepReader()
        self._buffer: list[str] = []
        self._sent_chars = 0

    async def listen(self, store: Store, turn_id: str) -> TurnState:
        """Follow the turn to its end and return its final state. Raises what reading the log raises."""
        final_state = await store.turn_state(turn_id)
        try:
            async with aclosing(follow(store, turn_id)) as batches:
                async for batch in batches:
                    decided = _decided(batch)
                    for logged in batch:
                        await self._handle(turn_id, logged, decided)
                    await self._flush()
            for ask in self._questions.values():
                await self._on_question_closed(ask)
        except EventsGoneError:
            if final_state is None:
                raise
            return final_state
        return self._fold.state()

    async def _handle(self, turn_id: str, logged: LoggedEvent, decided: Mapping[str, int]) -> None:
        event = logged.event
        self._fold.add(logged)
        if isinstance(event, TokenEvent):
            if not event.agent_path:
                self._buffer.append(event.content)
        elif isinstance(event, RestartEvent):
            await self._restart()
        elif isinstance(event, ApprovalRequestEvent):
            self._steps.note_tool(event.call_id, event.tool)
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
            await self._on_approval(ask)
        elif isinstance(event, QuestionEvent):
            await self._flush()
            ask = QuestionAsk(turn_id=turn_id, question_id=event.id, prompt=event.prompt, schema=event.schema)
            self._questions[event.id] = ask
            if event.id not in decided:
                await self._on_question(ask)
        elif isinstance(event, ReplyEvent):
            if (closed := self._questions.pop(event.question_id, None)) is not None:
                await self._on_question_closed(closed)
        elif step := self._steps.read(logged):
            await self._flush()
            await self._on_step(step)

    async def _flush(self) -> None:
        if self._buffer:
            text, self._buffer = "".join(self._buffer), []
            self._sent_chars += len(text)
            await self._on_chunk(text)

    async def _restart(self) -> None:
        """Take back the text that a restart made void, if the channel can; the end has the whole answer in any case."""
        text = self._fold.text
        if self._sent_chars > len(text) and await self._on_restart(text):
            self._sent_chars = len(text)
        self._buffer = [text[self._sent_chars :]] if len(text) > self._sent_chars else []
        self._sent_chars = min(self._sent_chars, len(text))
        await self._on_step(status_step("Starting again"))


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


class StepReader:
    """The steps of one turn, read from its events. It keeps the names of running tools, which progress events lack."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def note_tool(self, call_id: str, tool: str) -> None:
        self._tools[call_id] = tool

    def read(self, logged: LoggedEvent) -> StreamStep | None:
        """Return the step that the event reports, or None if it reports none."""
        event: Event = logged.event
        match event:
            case ToolCallEvent():
                self.note_tool(event.call_id, event.tool)
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
                return status_step(f"{verdict}: {self._tools.get(event.call_id, 'tool')}")
            case _:
                return None


def status_step(text: str) -> StreamStep:
    """Return a status line as a step. It has no end; the next one replaces it."""
    return StreamStep(id="status", kind="status", name=text, phase="progress", summary=text)


def status_line(step: StreamStep) -> str | None:
    """Return a step as one line, or None if the line would only repeat another."""
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


def _waiting_line(ask: ApprovalAsk) -> str:
    return f"Waiting for approval: {ask.tool}"


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
            return _append(state.text, STOPPED)
        case _:
            return _append(state.text, error_text(state.error.error if state.error else "the answer was not completed"))


def error_text(message: str) -> str:
    return f"(Error: {message})"


def _append(text: str, note: str) -> str:
    return f"{text}\n\n{note}" if text else note
