"""Whole turns of each agent adapter, encoded by wires and read back as a client does."""

from pathlib import Path
from typing import Any

from tests.contracts.agents import AgentCase
from tests.contracts.test_agent import only, text
from tests.contracts.test_agent_approvals import BOB, EVE, Post, case, events_until_suspended
from tests.contracts.turns import whole_log
from tests.scripted_model import ScriptedModel, calls, model_server, says, thinks, truncates
from tests.wires.sse import parse
from tests.wires.test_three_phase_text import phases
from turnwire.core.contracts.wires import Wire
from turnwire.core.log.codec import LoggedEvent, decode_event
from turnwire.core.log.events import DoneEvent, ErrorEvent, ToolCallEvent, ToolResultEvent
from turnwire.wires.sse_chat.encoder import SseChat
from turnwire.wires.three_phase_text.encoder import ThreePhaseText

__all__ = ["case", "model_server"]


async def rich_turn(case: AgentCase, model_server: ScriptedModel, folder: Path, *, whole: bool) -> list[LoggedEvent]:
    """Run a turn with reasoning, text, parallel tools, an approval, a denial, and a whole or partial answer."""
    post = Post("our tools", folder)
    last = says(thinks("Hm."), "All ", "done – é 🍵.") if whole else truncates("Half an")
    requests = ("send", BOB), ("weather", {"city": "Oslo"}), ("send", EVE)
    model_server.plan(calls(*requests, text="Let me\nsee. "), last)
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start("Write to both")
        await events_until_suspended(desk, turn, count=2)
        await desk.runner.decide(turn.id, "call_1", approved=True, by="ann")
        await desk.runner.decide(turn.id, "call_3", approved=False, reason="Eve listens", by="ann")
        await desk.events(turn)
        return await whole_log(desk.store, turn.id)


def encode(wire: Wire, log: list[LoggedEvent]) -> bytes:
    encoder = wire.encoder()
    return wire.opening + b"".join(map(encoder.frame, log))


async def test_sse_chat_carries_every_event_of_a_turn(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    log = await rich_turn(case, model_server, tmp_path, whole=True)
    frames = parse(encode(SseChat(), log))
    assert [decode_event(frame.data.encode()) for frame in frames] == [logged.event for logged in log]
    assert [frame.id for frame in frames] == [f"{logged.position}.{logged.epoch}" for logged in log]


async def test_three_phase_text_carries_text_tools_and_outcome(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    log = await rich_turn(case, model_server, tmp_path, whole=True)
    lines, answer, trailer = phases(encode(ThreePhaseText(), log))
    events = [logged.event for logged in log]
    assert answer == text(events)
    assert answer.endswith("All done – é 🍵.")
    # Events after the start of the answer are in the trailer.
    tools = _tools([*lines, *trailer["events"]])
    assert tools["tool_call"] == [(event.call_id, event.tool, event.args) for event in only(events, ToolCallEvent)]
    assert tools["tool_result"] == [
        (event.call_id, event.success, event.result) for event in only(events, ToolResultEvent)
    ]
    assert tools["approval_request"] == [("call_1", BOB), ("call_3", EVE)]
    assert sorted(tools["approval_response"]) == [("call_1", True), ("call_3", False)]
    assert sorted(trailer["tools_used"]) == ["send", "weather"]
    assert (trailer["outcome"], "error" in trailer) == ("completed", False)
    assert trailer["usage"]["input_tokens"] == 22


async def test_failed_turn_is_read_back_as_failed(case: AgentCase, model_server: ScriptedModel, tmp_path: Path) -> None:
    log = await rich_turn(case, model_server, tmp_path, whole=False)
    events = [decode_event(frame.data.encode()) for frame in parse(encode(SseChat(), log))]
    assert [event.code for event in only(events, ErrorEvent)] == [case.truncated]
    assert [event.outcome for event in only(events, DoneEvent)] == ["failed"]
    _, answer, trailer = phases(encode(ThreePhaseText(), log))
    assert "Half an" in answer
    assert (trailer["outcome"], trailer["error"]["code"]) == ("failed", case.truncated)


def _tools(lines: list[dict[str, Any]]) -> dict[str, list[Any]]:
    fields = {
        "tool_call": ("call_id", "tool", "args"),
        "tool_result": ("call_id", "success", "result"),
        "approval_request": ("call_id", "args"),
        "approval_response": ("call_id", "approved"),
    }
    return {
        kind: [tuple(line.get(name) for name in names) for line in lines if line["event"] == kind]
        for kind, names in fields.items()
    }
