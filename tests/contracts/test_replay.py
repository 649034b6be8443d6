"""Replays of recorded turns, for every adapter with a journal: the same bytes, no model call, the first difference.

The case of an adapter that has a journal has an office (see `office`).
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from msgspec.structs import replace

from tests.contracts.agent_cases import langgraph as langgraph_case
from tests.contracts.agent_cases import openai_agents as openai_case
from tests.contracts.agents import CASES, PATIENT, AgentCase, case_params
from tests.contracts.test_agent_steering import BERGEN, OSLO, Office, steer
from tests.contracts.turns import followed
from tests.contracts.wires import WIRES
from tests.core.desk import Desk, open_actor_desk, wait_until_suspended
from tests.examples import examples
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Plan, ScriptedModel, calls, fails, model_server, says, thinks
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.core.contracts.agents import Agent
from turnwire.core.errors import RecordingError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.emit import emit
from turnwire.core.log.events import InputEvent, StatusEvent, ToolCallEvent
from turnwire.core.log.history import TrimmedHistory
from turnwire.recordings.recording import TurnRecording, decode_recording, encode_recording, record_turn
from turnwire.recordings.replay import ReplayResult, replay_turn, updated_recording
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED

TURNS = examples(8)
"""The recorded turns of an adapter over each API: 52 with `scripts/test --all`."""


@pytest.fixture(params=case_params([case for case in CASES if hasattr(case.module, "build_office")]))
def case(request: pytest.FixtureRequest) -> AgentCase:
    return request.param


class Toolbox:
    """Tools that count their runs."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

        async def weather(city: str) -> dict[str, str]:
            """Return the weather in a city."""
            self.runs["weather"] += 1
            emit(StatusEvent(f"Looking out of the window in {city}"))
            return {"weather": f"snow in {city}"}

        def count(word: str) -> int:
            """Count the letters of a word, in a thread."""
            self.runs["count"] += 1
            return len(word)

        async def fail(reason: str) -> str:
            """Fail."""
            self.runs["fail"] += 1
            raise ValueError(reason)

        async def send(to: str) -> str:
            """Send a letter, if a person approves."""
            self.runs["send"] += 1
            return f"sent to {to}"

        self.tools: list[Callable[..., Any]] = [weather, count, fail, send]


@asynccontextmanager
async def open_desk(case: AgentCase, server: ScriptedModel, box: Toolbox, **options: Any) -> AsyncIterator[Desk]:
    async with case.desk(server, *box.tools, asks=("send",), **options) as desk:
        yield desk


def agent_of(case: AgentCase, server: ScriptedModel, box: Toolbox) -> tuple[Agent, Any]:
    built = case.module.build(server.url, box.tools, api=case.api, timeout=PATIENT, asks=("send",))
    return case.agent(built, None), built


async def close(case: AgentCase, built: Any) -> None:
    if closing := getattr(case.module, "close", None):
        await closing(built)


async def take_recording(desk: Desk, turn_id: str) -> TurnRecording:
    """Return a recording as it is read from a file."""
    record = await desk.store.find_turn("ann", turn_id)
    history = await TrimmedHistory(desk.store, 50, 32_000).recall(record)
    return decode_recording(encode_recording(await record_turn(desk.store, record, history)))


def script(draw: random.Random, number: int, *, can_fail: bool) -> tuple[list[Plan], bool | None]:
    """Return the replies of the model in one turn, and the decision about `send` if that is called."""
    plans: list[Plan] = []
    decision: bool | None = None
    made = 0
    for _ in range(draw.randrange(4)):
        wanted = [
            draw.choice([("weather", {"city": f"Oslø {made + n}"}), ("count", {"word": "tea" * (n + 1)})])
            for n in range(draw.randrange(1, 4))
        ]
        if can_fail and draw.random() < 0.2:
            wanted.append(("fail", {"reason": "no reason"}))
        if decision is None and draw.random() < 0.3:
            wanted.append(("send", {"to": "bob"}))
            decision = draw.random() < 0.7
        ids = [f"c{number}_{made + n}" for n in range(len(wanted))]
        made += len(wanted)
        plans.append(calls(*wanted, text=draw.choice(["", "One moment. "]), ids=ids))
    text = f"Answer {number}: „tea” \u2028 is 茶"
    plans.append(draw.choice([says(text), says(thinks("Hm."), *text), says("")]))
    if draw.random() < 0.1:
        plans[-1] = fails(400, message="It is too much.")
    return plans, decision


async def play(desk: Desk, server: ScriptedModel, case: AgentCase, draw: random.Random, session: str, n: int) -> str:
    plans, decision = script(draw, n, can_fail=not case.tool_error_is_fatal)
    server.plan(*plans)
    turn = await desk.start(f"Question {n}", session_id=session)
    if decision is not None:
        await wait_until_suspended(desk, turn)
        (request,) = [
            logged.event
            for logged in await desk.store.read(turn.id, 0, 10_000)
            if isinstance(logged.event, ToolCallEvent) and logged.event.tool == "send"
        ]
        await desk.runner.decide(turn.id, request.call_id, approved=decision, reason=None, by="ann")
    await followed(desk.store, turn.id)
    assert not server.unused  # The turn has taken the scripted way.
    return turn.id


def wire_bytes(name: str, events: tuple[LoggedEvent, ...]) -> bytes:
    encoder = WIRES[name].encoder()
    return b"".join(map(encoder.frame, events))


def check_identical(recording: TurnRecording, replay: ReplayResult) -> None:
    assert replay.divergence is None, str(replay.divergence)
    assert replay.events == recording.events
    for name in WIRES:
        assert wire_bytes(name, replay.events) == wire_bytes(name, recording.events)


@pytest.mark.long
async def test_replays_of_many_turns_are_identical_on_all_wires_and_call_no_model(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    draw, box = random.Random(f"{case.id}"), Toolbox()
    model_server.otherwise = says("Something.")  # Pydantic AI requests an empty answer again.
    async with open_desk(case, model_server, box) as desk:
        session = await desk.session()
        recordings: list[TurnRecording] = []
        for number in range(TURNS):
            if number % 5 == 0:
                session = await desk.session()  # The first turn of a session has no history.
            turn_id = await play(desk, model_server, case, draw, session, number)
            recordings.append(await take_recording(desk, turn_id))
    requests, runs = len(model_server.requests), box.runs.copy()
    assert sum(runs.values()) > TURNS  # Otherwise the scripts are too small to prove anything.
    agent, built = agent_of(case, model_server, box)
    for recording in recordings:
        check_identical(recording, await replay_turn(recording, agent))
    await close(case, built)
    assert (len(model_server.requests), box.runs) == (requests, runs)


async def one_turn(case: AgentCase, server: ScriptedModel, box: Toolbox, *plans: Plan, **options: Any) -> TurnRecording:
    server.plan(*plans)
    async with open_desk(case, server, box, **options) as desk:
        turn = await desk.start("Question")
        await followed(desk.store, turn.id)
        return await take_recording(desk, turn.id)


async def test_changed_prompt_is_named_at_the_position_of_its_model_call(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    box = Toolbox()
    recording = await one_turn(
        *(case, model_server, box),
        calls(("weather", {"city": "Oslo"}), text="One moment. ", ids=["a1"]),
        calls(("count", {"word": "tea"}), ids=["a2"]),
        says("It is snowing."),
    )
    agent, built = agent_of(case, model_server, box)
    # The requests are not in the journal, but a replay with the same fingerprints knows them.
    known = updated_recording(recording, await replay_turn(recording, agent))
    known = decode_recording(encode_recording(known))
    assert len(known.requests) == 3
    model_calls = [entry for entry in known.entries if entry.kind == "model" and entry.state == "started"]
    for number, entry in enumerate(model_calls):
        changed = [
            replace(other, fingerprint=f"of another request {number}") if other is entry else other
            for other in known.entries
        ]
        requests = {**known.requests, f"of another request {number}": '"another request"'}
        other = replace(known, entries=tuple(changed), requests=requests)
        replay = await replay_turn(other, agent)
        assert replay.divergence is not None
        assert (replay.divergence.position, replay.divergence.what) == (entry.since + 1, "prompt")
        assert replay.divergence.recorded == '"another request"'
        assert replay.divergence.now == known.requests[entry.fingerprint]
        assert replay.events == recording.events[: entry.since]
        assert "another request" in str(replay.divergence)
        # With the new request accepted, or requests left out, nothing differs.
        check_identical(recording, await replay_turn(updated_recording(other, await _unchecked(other, agent)), agent))
    await close(case, built)


async def _unchecked(recording: TurnRecording, agent: Agent) -> ReplayResult:
    replay = await replay_turn(recording, agent, compare_prompts=False)
    check_identical(recording, replay)
    return replay


async def test_changed_arguments_are_named_with_both_sides(case: AgentCase, model_server: ScriptedModel) -> None:
    box = Toolbox()
    plans = calls(("weather", {"city": "Oslo"}), ids=["a1"]), says("It is snowing.")
    recording = await one_turn(case, model_server, box, *plans)
    (position,) = [logged.position for logged in recording.events if isinstance(logged.event, ToolCallEvent)]
    agent, built = agent_of(case, model_server, box)
    for old, new, what in ((b"Oslo", b"Rome", "arguments"), (b'"weather"', b'"count"', "tool")):
        # As if the code had made another call at the time: the log and the journal name it, the model's reply does not.
        lines = encode_recording(recording).splitlines()
        lines = [line.replace(old, new) if _is_about_the_call(line) else line for line in lines]
        replay = await replay_turn(decode_recording(b"\n".join(lines)), agent)
        assert replay.divergence is not None
        assert (replay.divergence.position, replay.divergence.what) == (position, what)
        assert new.decode().strip('"') in replay.divergence.recorded
        assert old.decode().strip('"') in replay.divergence.now
    await close(case, built)


def _is_about_the_call(line: bytes) -> bool:
    return b'"event":{"type":"tool_call"' in line or b'"kind":"tool"' in line


async def test_delegated_agents_are_replayed_inside_their_tool(case: AgentCase, model_server: ScriptedModel) -> None:
    if not hasattr(case.module, "delegate"):
        return
    box = Toolbox()
    model_server.plan(
        calls(("ask_scout", {"question": "Where?"}), ids=["a1"]),
        calls(("weather", {"city": "Oslo"}), ids=["b1"]),
        says("The scout says snow."),
        says("It is snowing."),
    )
    async with case.desk(model_server, *box.tools, delegates=True) as desk:
        turn = await desk.start("Question")
        await followed(desk.store, turn.id)
        recording = await take_recording(desk, turn.id)
    assert any(logged.event.agent_path for logged in recording.events)
    built = case.module.delegate(model_server.url, box.tools, api=case.api, timeout=PATIENT)
    check_identical(recording, await replay_turn(recording, case.agent(built, None)))
    await close(case, built)
    assert (len(model_server.requests), box.runs["weather"]) == (4, 1)


async def test_messages_that_entered_a_turn_enter_its_replay(case: AgentCase, model_server: ScriptedModel) -> None:
    office = Office("Oslo")
    model_server.plan(OSLO, BERGEN, says("Sunny everywhere."))
    async with case.desk(model_server, office.tool) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Oslo"].reached()
        sent = await steer(desk, turn)
        office.gates["Oslo"].open()
        await followed(desk.store, turn.id)
        recording = await take_recording(desk, turn.id)
        joined = await take_recording(desk, sent.id)
    (entered,) = [logged.position for logged in recording.events if isinstance(logged.event, InputEvent)]
    built = case.module.build(model_server.url, [office.tool], api=case.api, timeout=PATIENT)
    agent = case.agent(built, None)
    check_identical(recording, await replay_turn(recording, agent))
    # With another message, the next request differs.
    entries = [replace(each, result=b'["Other."]') if each.kind == "input" else each for each in recording.entries]
    replay = await replay_turn(replace(recording, entries=tuple(entries)), agent)
    assert replay.divergence is not None
    assert (replay.divergence.position, replay.divergence.what) == (entered + 1, "prompt")
    assert "Other." in replay.divergence.now
    with pytest.raises(RecordingError, match=turn.id):
        await replay_turn(joined, agent)
    await close(case, built)
    assert len(model_server.requests) == 3


async def test_replay_leaves_the_thread_of_a_graph_alone(model_server: ScriptedModel, tmp_path: Path) -> None:
    box = Toolbox()
    graph = langgraph_case.build(
        model_server.url, box.tools, api="chat", timeout=PATIENT, asks=["send"], folder=tmp_path
    )
    model_server.plan(
        calls(("weather", {"city": "Oslo"}), ids=["a1"]),
        calls(("send", {"to": "bob"}), ids=["a2"]),
        says("It is sent."),
    )
    async with open_actor_desk(MemoryStore(), LangGraphAgent(graph)) as desk:
        turn = await desk.start("Question")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "a2", approved=True, by="ann")
        await followed(desk.store, turn.id)
        recording = await take_recording(desk, turn.id)
    before = [found.checkpoint["id"] async for found in graph.checkpointer.alist(None)]
    check_identical(recording, await replay_turn(recording, LangGraphAgent(graph)))
    assert [found.checkpoint["id"] async for found in graph.checkpointer.alist(None)] == before
    await langgraph_case.close(graph)


async def test_replay_leaves_the_session_of_the_sdk_alone(model_server: ScriptedModel, tmp_path: Path) -> None:
    box = Toolbox()
    built = openai_case.build(model_server.url, box.tools, api="chat", timeout=PATIENT)
    sessions: list[SQLiteSession] = []

    def open_session(turn: Any) -> SQLiteSession:
        sessions.append(SQLiteSession(turn.session_id, tmp_path / "sessions.db"))
        return sessions[-1]

    agent = OpenAIAgentsAgent(built, session=open_session)
    model_server.plan(says("Hello."), calls(("weather", {"city": "Oslo"}), ids=["a1"]), says("It is snowing."))
    async with open_actor_desk(MemoryStore(), agent) as desk:
        first = await desk.start("Hi")
        await followed(desk.store, first.id)
        turn = await desk.start("Question", session_id=first.session_id)
        await followed(desk.store, turn.id)
        recording = await take_recording(desk, turn.id)
    before = await sessions[0].get_items()
    await sessions[0].add_items([{"role": "user", "content": "Later"}])
    check_identical(recording, await replay_turn(recording, agent))
    assert await sessions[0].get_items() == [*before, {"role": "user", "content": "Later"}]
    for session in sessions:
        session.close()
    await openai_case.close(built)
