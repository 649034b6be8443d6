"""Replays of agents that journal their own steps: what counts as the first difference, and where it is."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.turns import followed
from tests.core.desk import AgentEvents, Gate, lose_worker, open_actor_desk
from turnwire.agents.loader import as_agent
from turnwire.core.errors import AgentError, RecordingError
from turnwire.core.journal.turn_journal import journaled
from turnwire.core.log.emit import emit
from turnwire.core.log.events import HandoffEvent, ResponseEvent, RestartEvent, StatusEvent, ToolCallEvent
from turnwire.core.log.turns import Message, Turn
from turnwire.recordings.recording import TurnRecording, decode_recording, encode_recording, record_turn
from turnwire.recordings.replay import Difference, ReplayResult, replay_turn
from turnwire.stores.memory import MemoryStore

Answer = Callable[[Turn], AgentEvents]
live: list[str] = []


def journaling(answer: Answer) -> Any:
    declared: Any = answer
    declared.on_crash = "resume"
    return as_agent(answer)


async def look(city: str) -> str:
    live.append(city)
    emit(StatusEvent(f"Looking at {city}"))
    return f"snow in {city}"


async def answer(turn: Turn) -> AgentEvents:
    yield "Let me "
    yield "see. "
    yield HandoffEvent("cook")
    for city in ("Oslo", "Rome"):
        yield f"{city}: {await journaled(f'look at {city}', lambda city=city: look(city))}. "
    yield "Done."


async def recorded(agent: Answer, stop: Gate | None = None) -> TurnRecording:
    async with open_actor_desk(MemoryStore(), journaling(agent)) as desk:
        turn = await desk.start("Where?")
        if stop is not None:
            await stop.reached()
            await desk.cancel(turn)
        await followed(desk.store, turn.id)
        record = await desk.store.find_turn("ann", turn.id)
        taken = await record_turn(desk.store, record, (Message("user", "before"),))
    recording = decode_recording(encode_recording(taken))
    assert recording == taken
    return recording


async def replayed(recording: TurnRecording, agent: Answer) -> ReplayResult:
    live.clear()
    replay = await replay_turn(recording, journaling(agent))
    assert live == []
    return replay


async def test_replay_of_unchanged_code_is_identical_and_runs_no_step() -> None:
    recording = await recorded(answer)
    replay = await replayed(recording, answer)
    assert replay.divergence is None
    assert replay.events == recording.events
    assert replay.answered_calls == 2


async def test_text_that_is_cut_otherwise_is_the_same() -> None:
    async def other(turn: Turn) -> AgentEvents:
        async for piece in answer(turn):
            for letter in piece if isinstance(piece, str) else ():
                yield letter
            if not isinstance(piece, str):
                yield piece

    recording = await recorded(answer)
    assert (await replayed(recording, other)).events == recording.events


async def other_text(turn: Turn) -> AgentEvents:
    async for piece in answer(turn):
        yield "Finished." if piece == "Done." else piece


async def no_handoff(turn: Turn) -> AgentEvents:
    async for piece in answer(turn):
        if isinstance(piece, str):
            yield piece


async def one_more_event(turn: Turn) -> AgentEvents:
    async for piece in answer(turn):
        yield piece
        if piece == "see. ":
            yield StatusEvent("Thinking")


async def one_step_less(turn: Turn) -> AgentEvents:
    yield "Let me see. "
    yield HandoffEvent("cook")
    yield f"Oslo: {await journaled('look at Oslo', lambda: look('Oslo'))}. "


async def another_step(turn: Turn) -> AgentEvents:
    yield "Let me see. "
    yield HandoffEvent("cook")
    yield f"Oslo: {await journaled('look at Bonn', lambda: look('Bonn'))}. "


async def failing(turn: Turn) -> AgentEvents:
    yield "Let me see. "
    yield HandoffEvent("cook")
    raise KeyError("the reason")


async def other_response(turn: Turn) -> AgentEvents:
    async for piece in answer(turn):
        yield piece
    yield ResponseEvent("", mode="another mode")


async def longer_text(turn: Turn) -> AgentEvents:
    async for piece in answer(turn):
        yield piece
    yield " Bye."


@pytest.mark.parametrize(
    ("agent", "what", "kind", "now"),
    [
        (other_text, "text", "token", "Finished."),
        (no_handoff, "missing", "handoff", ""),
        (one_more_event, "event", "handoff", "Thinking"),
        (one_step_less, "missing", "status", ""),
        (another_step, "call", "status", "look at Bonn"),
        (failing, "failure", "token", "KeyError: 'the reason'"),
        (longer_text, "text", "response", " Bye."),
        (other_response, "response", "response", "another mode"),
    ],
)
async def test_first_difference_is_named_with_its_position(
    agent: Answer, what: Difference, kind: str, now: str
) -> None:
    recording = await recorded(answer)
    replay = await replayed(recording, agent)
    assert replay.divergence is not None
    assert replay.divergence.what == what
    assert recording.events[replay.divergence.position - 1].type == kind
    assert now in replay.divergence.now
    assert replay.events == recording.events[: replay.divergence.position - 1]
    assert isinstance(replay.error, KeyError) == (agent is failing)


async def test_recorded_failure_is_the_same_failure_again() -> None:
    async def refuses(turn: Turn) -> AgentEvents:
        yield "No. "
        raise AgentError("It is closed.", code="closed")

    async def refuses_otherwise(turn: Turn) -> AgentEvents:
        yield "No. "
        raise AgentError("It is late.", code="closed")

    recording = await recorded(refuses)
    assert (await replayed(recording, refuses)).events == recording.events
    divergence = (await replayed(recording, refuses_otherwise)).divergence
    assert divergence is not None
    assert (divergence.what, divergence.position, divergence.now) == ("failure", 4, "It is late.")


async def test_replay_of_a_stopped_turn_ends_where_it_was_stopped() -> None:
    gate = Gate()

    async def hold() -> str:
        await gate.wait()
        return "never"

    async def held(turn: Turn) -> AgentEvents:
        yield f"Oslo: {await journaled('look', lambda: look('Oslo'))}. "
        yield await journaled("hold", hold)

    recording = await recorded(held, stop=gate)
    assert recording.done.outcome == "cancelled"
    replay = await replayed(recording, held)
    assert (replay.divergence, replay.events) == (None, recording.events)
    assert replay.answered_calls == 1


async def test_turn_that_has_lost_its_worker_is_replayed_without_the_loss() -> None:
    gate, store = Gate(), MemoryStore()

    async def slow(turn: Turn) -> AgentEvents:
        yield f"Oslo: {await journaled('look', lambda: look('Oslo'))}. "
        yield "Let me think. "
        if not gate.is_open:
            await gate.wait()
        yield "Done."

    async with open_actor_desk(store, journaling(slow)) as desk:
        turn = await desk.start("Where?")
        await gate.reached()
        await desk.runner.worker.running[turn.id]._log.flush()
        await lose_worker(desk)
    gate.open()
    async with open_actor_desk(store, journaling(slow)) as desk:
        await followed(store, turn.id)
        recording = await record_turn(store, await store.find_turn("ann", turn.id), ())
    assert any(isinstance(logged.event, RestartEvent) for logged in recording.events)
    replay = await replayed(recording, slow)
    assert (replay.divergence, replay.events) == (None, recording.events)


async def test_turn_that_runs_cannot_be_recorded_and_unrecorded_tools_not_replayed() -> None:
    gate = Gate()

    async def held(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield "x"

    async with open_actor_desk(MemoryStore(), journaling(held)) as desk:
        turn = await desk.start("Where?")
        await gate.reached()
        with pytest.raises(RecordingError, match="not ended"):
            await record_turn(desk.store, await desk.store.find_turn("ann", turn.id), ())
        gate.open()
        await followed(desk.store, turn.id)

    async def plain(turn: Turn) -> AgentEvents:
        yield ToolCallEvent("c1", "look", {})

    with pytest.raises(RecordingError, match="not in its journal"):
        await replay_turn(await recorded(plain), as_agent(plain))


async def test_agent_that_emits_in_a_thread_diverges_without_an_error_there() -> None:
    async def emits(turn: Turn) -> AgentEvents:
        await asyncio.to_thread(emit, StatusEvent("from a thread"))
        async for piece in answer(turn):
            yield piece

    divergence = (await replayed(await recorded(answer), emits)).divergence
    assert divergence is not None
    assert (divergence.position, divergence.what) == (3, "event")
    assert "from a thread" in divergence.now


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [b"{}", *lines[1:]], "a recording of version 1"),
        (
            lambda lines: [lines[0].replace(b'"recording":1', b'"recording":2'), *lines[1:]],
            "not a recording of version 1",
        ),
        (lambda lines: lines[:-1][: len(lines) // 2], "its end is missing"),
        (lambda lines: [*lines, b'{"other":1}'], "is not a line of a recording"),
        (lambda lines: [lines[0], b"not JSON", *lines[1:]], "line 2 is not"),
        (lambda lines: [], "not a recording"),
    ],
)
async def test_file_that_is_no_recording_is_refused(change: Callable[[list[bytes]], list[bytes]], message: str) -> None:
    data = encode_recording(await recorded(answer))
    with pytest.raises(RecordingError, match=message):
        decode_recording(b"\n".join(change(data.splitlines())))
