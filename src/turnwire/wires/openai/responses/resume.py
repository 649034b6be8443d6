"""The responses of a turn: the objects, the resume points in their streams, and where each begins in the log."""

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from turnwire.core.contracts.stores import LogReader
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import SUSPENSION_EVENTS, LoggedEvent, begins_wait, log_event
from turnwire.core.log.events import (
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    MessageEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.server.errors import HttpError
from turnwire.server.streams.resume import (
    FRAMES,
    EncodedWalk,
    LogVisitor,
    PositionFinder,
    ResumePoint,
    count_frames,
    is_void,
    skip_frames,
    void_of,
    walk_log,
)
from turnwire.server.streams.stored_log import StateReader
from turnwire.wires.openai.responses.encoder import OpenAIResponses, ResponsesEncoder

# Response objects


async def response_so_far(store: StateReader, record: TurnRecord, wire: OpenAIResponses) -> dict[str, Any]:
    """Return the response object, made from the log, or from the state of a turn whose events are gone."""
    walk = EncodedWalk(wire)
    try:
        await walk_log(store, record.id, walk)
        encoder = _responses_encoder(walk)
    except HttpError:
        state = await store.turn_state(record.id)
        if state is None or wire.segment > 1:
            raise
        encoder = wire.encoder()
        for logged in log_of_state(state, record.created_at, record.ended_at or record.created_at):
            encoder.frame(logged)
    response = encoder.response()
    return {**response, "status": "queued"} if record.phase == "queued" else response


async def settled_response(store: LogReader, turn_id: str, wire: OpenAIResponses, *, created: bool) -> dict[str, Any]:
    """Return the response object once its turn has ended or waits for a person."""
    void = () if created else await void_of(store, turn_id)
    while True:
        encoder = wire.encoder()
        try:
            async with aclosing(follow(store, turn_id)) as batches:
                async for events in batches:
                    for logged in events:
                        if not is_void(void, logged.position):
                            encoder.frame(logged)
                    # A batch may also end because a page does; the turn waits only if the log ends there too.
                    if encoder.has_ended or (encoder.pause() and not await store.read(turn_id, events[-1].position, 1)):
                        break
            return encoder.response()
        except RestartedError:
            void = await void_of(store, turn_id)


def _responses_encoder(walk: EncodedWalk) -> ResponsesEncoder:
    assert isinstance(walk.encoder, ResponsesEncoder)
    return walk.encoder


def log_of_state(state: TurnState, began: int, ended: int) -> Iterator[LoggedEvent]:
    """Yield a short log of an ended turn whose events are gone; times are in milliseconds."""
    for position, event in enumerate(_events(state), 1):
        logged = log_event(event, position, 0)
        logged.at = began if position <= 2 else ended
        yield logged


def _events(state: TurnState) -> Iterator[Event]:
    yield SessionEvent(state.session_id, state.turn_id, state.agent)
    yield MessageEvent(state.message, "", "")
    offset = 0
    for step in state.steps:
        if step.kind != "tool":
            continue
        yield TokenEvent(state.text[offset : step.answer_offset])
        offset = step.answer_offset
        yield ToolCallEvent(step.id, step.name, step.args or {}, agent_path=step.agent_path)
        if step.state in ("succeeded", "failed"):
            succeeded = step.state == "succeeded"
            yield ToolResultEvent(step.id, step.name, succeeded, step.result, agent_path=step.agent_path)
    yield TokenEvent(state.text[offset:])
    yield from state.citations
    if usage := state.usage:
        yield UsageEvent(
            None, usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens
        )
    if state.error is not None:
        yield state.error
    yield DoneEvent(state.outcome or "interrupted", state.session_id, state.turn_id)


# Resume points


class _ResponseFinder(PositionFinder):
    """Finds the point after so many frames, and keeps the frames after it."""

    def begin(self) -> None:
        super().begin()
        self._rest: list[bytes] = []

    def see(self, logged: LoggedEvent, frame: bytes) -> None:
        was_found = self.is_found
        super().see(logged, frame)
        if self.is_found:
            self._rest.append(frame if was_found else self.point.rest)

    def end(self, count: int) -> ResumePoint:
        """Return the point if the response has ended. Raises HttpError 416."""
        if self.seen + count_frames(self.pause) < count:
            raise HttpError(416, "bad_offset", f"there are {self.seen} events in this response; read from the start")
        rest = b"".join(self._rest) + skip_frames(self.pause, max(0, count - self.seen))
        return ResumePoint(rest=rest, is_end=True)


async def find_in_response(store: LogReader, record: TurnRecord, wire: OpenAIResponses, count: int) -> ResumePoint:
    """Return the point after so many frames of a response. Raises HttpError 410 or 416."""
    finder = _ResponseFinder(wire, FRAMES, lambda segment: count if segment.number == 1 else None)
    void = await walk_log(store, record.id, finder)
    if record.phase != "ended" and (finder.pause or _responses_encoder(finder).has_ended):
        return finder.end(count)  # The turn may go on for long; the response does not.
    finder.check(count)
    return replace(finder.point, void=void)


# Segments


class ResponseSegments(LogVisitor):
    """Numbers the responses of a turn; `answers` are those of the client that each response began with."""

    def begin(self) -> None:
        self.count = 1
        self.answers: list[tuple[int, ApprovalResponseEvent | ToolResultEvent]] = []
        self._waits = False
        self._client_calls: set[str] = set()

    def visit(self, logged: LoggedEvent) -> None:
        if self._waits and logged.type not in SUSPENSION_EVENTS:
            self.count, self._waits = self.count + 1, False
        if logged.type in ("approval_response", "tool_call", "tool_result"):
            self._note(logged.event)
        self._waits = self._waits or begins_wait(logged)

    def _note(self, event: Event) -> None:
        match event:
            case ToolCallEvent(runs_on="client"):
                self._client_calls.add(event.call_id)
            case ToolResultEvent() if event.call_id in self._client_calls:
                self.answers.append((self.count, event))
            case ApprovalResponseEvent():
                self.answers.append((self.count, event))
            case _:
                pass

    def answered_in(self, call_id: str) -> int:
        """Return the number of the response that began with the last answer to a call."""
        return [segment for segment, answer in self.answers if answer.call_id == call_id][-1]


async def read_segments(store: LogReader, turn_id: str) -> ResponseSegments:
    """Return the responses that the turn has begun so far. Raises HttpError 410."""
    segments = ResponseSegments()
    await walk_log(store, turn_id, segments)
    return segments
