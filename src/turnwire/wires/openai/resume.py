"""What a turn has come to as a response of OpenAI's: the object, the place in its stream, what was sent to it."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from turnwire.core.codec import SUSPENSION_EVENTS, LoggedEvent, log_event
from turnwire.core.contracts import LogReader
from turnwire.core.errors import RestartedError
from turnwire.core.events import (
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
from turnwire.core.follow import PAGE, follow
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.server.errors import HttpError
from turnwire.server.streams.replay import StateReader
from turnwire.server.streams.resume import ResumePoint, Void, after_frames, place_of_frame, void_of
from turnwire.wires.openai.responses_encoder import OpenAIResponses, ResponsesEncoder

# A log in short, made of what is left of a turn whose events are gone: enough to tell its response again.


def retold(state: TurnState, began: int, ended: int) -> Iterator[LoggedEvent]:
    """Of an ended turn; times are in milliseconds."""
    for position, event in enumerate(_events(state), 1):
        logged = log_event(event, position, 0)
        logged.at = began if position <= 2 else ended
        yield logged


def _events(state: TurnState) -> Iterator[Event]:
    yield SessionEvent(state.session_id, state.turn_id, state.agent)
    yield MessageEvent(state.message, "", "")
    told = 0
    for step in state.steps:
        if step.kind != "tool":
            continue
        yield TokenEvent(state.text[told : step.answer_offset])
        told = step.answer_offset
        yield ToolCallEvent(step.id, step.name, step.args or {}, agent_path=step.agent_path)
        if step.state in ("succeeded", "failed"):
            succeeded = step.state == "succeeded"
            yield ToolResultEvent(step.id, step.name, succeeded, step.result, agent_path=step.agent_path)
    yield TokenEvent(state.text[told:])
    yield from state.citations
    if usage := state.usage:
        yield UsageEvent(
            None, usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens
        )
    if state.error is not None:
        yield state.error
    yield DoneEvent(state.outcome or "interrupted", state.session_id, state.turn_id)


async def response_so_far(store: StateReader, record: TurnRecord, wire: OpenAIResponses) -> dict[str, Any]:
    """The object, as far as the log tells it; from the state that is left of a turn whose events are gone."""
    try:
        encoder, _ = await _tell(store, record.id, wire)
    except HttpError:
        state = await store.turn_state(record.id)
        if state is None or wire.segment > 1:
            raise
        encoder = wire.encoder()
        for logged in retold(state, record.created_at, record.ended_at or record.created_at):
            encoder.frame(logged)
    response = encoder.response()
    return {**response, "status": "queued"} if record.phase == "queued" else response


async def settled_response(store: LogReader, turn_id: str, wire: OpenAIResponses) -> dict[str, Any]:
    """Waits until the response is over: its turn has ended, or waits for a person."""
    while True:
        try:
            void, encoder = await void_of(store, turn_id), wire.encoder()
            async with aclosing(follow(store, turn_id)) as batches:
                async for events in batches:
                    for logged in _counting(events, void):
                        encoder.frame(logged)
                    if encoder.has_ended or await _waits(store, turn_id, events[-1]):
                        break
            return encoder.response()
        except RestartedError:
            continue  # What was said is void; what counts is read again.


async def _waits(store: LogReader, turn_id: str, newest: LoggedEvent) -> bool:
    # What was read may end here only because a page does; the turn waits if the log ends here too.
    return newest.type == "approval_request" and not await store.read(turn_id, newest.position, 1)


async def place_of_response(store: LogReader, record: TurnRecord, wire: OpenAIResponses, count: int) -> ResumePoint:
    """The place after so many frames. Raises HttpError 410 or 416."""
    if record.phase != "ended":
        encoder, told = await _tell(store, record.id, wire)
        told += encoder.pause()
        if encoder.has_ended or encoder.pause():
            # The turn may go on for long; the response does not.
            if told.count(b"\n\n") < count:
                raise HttpError(416, "bad_offset", "there are not so many events in this response")
            return ResumePoint(rest=after_frames(told, count), is_end=True)
    if not count:
        return ResumePoint(void=await void_of(store, record.id))
    return await place_of_frame(store, record.id, wire, count)


async def _tell(store: LogReader, turn_id: str, wire: OpenAIResponses) -> tuple[ResponsesEncoder, bytes]:
    """An encoder that has been given the whole log, and what it said. Raises HttpError 410."""
    while True:
        encoder = wire.encoder()
        frames: list[bytes] = []
        try:
            async with aclosing(_settled_log(store, turn_id)) as log:
                async for logged in log:
                    frames.append(encoder.frame(logged))
            return encoder, b"".join(frames)
        except RestartedError:
            continue  # It has come since we looked.


async def _settled_log(store: LogReader, turn_id: str) -> AsyncGenerator[LoggedEvent]:
    void, position = await void_of(store, turn_id), 0
    while events := await store.read(turn_id, position, PAGE):
        for logged in _counting(events, void):
            yield logged
        position = events[-1].position


def _counting(events: list[LoggedEvent], void: Void) -> list[LoggedEvent]:
    return [logged for logged in events if not any(logged.position in span for span in void)] if void else events


# Segments


async def count_segments(store: LogReader, turn_id: str) -> int:
    """How many responses the turn has begun so far. Raises HttpError 410."""
    return (await _walk(store, turn_id))[-1][1]


async def segment_of_decision(store: LogReader, turn_id: str, call_id: str) -> int:
    """The response that began with a decision; if it was decided about several times, with the last."""
    decided = [
        segment
        for logged, segment in await _walk(store, turn_id)
        if isinstance(logged.event, ApprovalResponseEvent) and logged.event.call_id == call_id
    ]
    return decided[-1]


async def decisions_before(store: LogReader, turn_id: str, segment: int) -> list[ApprovalResponseEvent]:
    """What a response was begun with, if not with a message."""
    walked = await _walk(store, turn_id)
    events = [logged.event for logged, at in walked if at == segment]
    return [event for event in events if isinstance(event, ApprovalResponseEvent)]


async def _walk(store: LogReader, turn_id: str) -> list[tuple[LoggedEvent, int]]:
    """The events that tell segments apart, each with the number of its own."""
    walked: list[tuple[LoggedEvent, int]] = []
    segment, waits = 1, False
    async with aclosing(_settled_log(store, turn_id)) as log:
        async for logged in log:
            if waits and logged.type not in SUSPENSION_EVENTS:
                segment, waits = segment + 1, False
                walked.append((logged, segment))
            elif logged.position == 1 or logged.type == "approval_response":
                walked.append((logged, segment))
            waits = waits or logged.type == "approval_request"
    return walked
