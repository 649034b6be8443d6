"""What a thread holds, for a page that is opened anew: its messages, and what runs or waits in it.

The shape is TanStack AI's, whose messages have `parts`; `content` and `toolCalls` beside them are those of AG-UI.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from turnwire.core.errors import SessionNotFoundError
from turnwire.core.turns import Message, Step, TurnRecord, TurnState
from turnwire.server.routes.ag_ui.runs import RunName, read_story
from turnwire.server.turnwire import Turnwire
from turnwire.wires.ag_ui.calls import result_text
from turnwire.wires.ag_ui.frames import known
from turnwire.wires.ag_ui.interrupts import interrupt_id

_MOST_TURNS = 200


async def hydrated(turnwire: Turnwire, principal: str, thread_id: str) -> dict[str, Any]:
    """A thread that nobody has written to yet is an empty one."""
    try:
        session = await turnwire.store.find_session(principal, thread_id)
    except SessionNotFoundError:
        return {"messages": [], "activeRun": None}
    turns = await turnwire.store.list_turns(principal, session_id=session.id, limit=_MOST_TURNS)
    chain = _chain(turns)
    first = await turnwire.store.next_turn(session.id, None)
    messages = list(_told_elsewhere(first)) if first else []
    for turn in chain:
        messages.append(_user_message(turn))
        if turn.phase in ("waiting", "ended"):
            state = await turnwire.state(turn)
            messages += _assistant_messages(turn, state)
    found: dict[str, Any] = {"messages": messages, "activeRun": None}
    unfinished = next((turn for turn in turns if turn.phase != "ended"), None)
    if unfinished is not None:
        found.update(await _under_way(turnwire, unfinished, thread_id))
    return found


async def _under_way(turnwire: Turnwire, record: TurnRecord, thread_id: str) -> dict[str, Any]:
    wire = RunName(record).wire(thread_id, 0)
    story = await read_story(turnwire, record.id, wire)
    run_id = RunName(record, len(story.starts)).name
    if not story.open:
        return {"activeRun": {"runId": run_id}}
    last = story.pause.rpartition(b"data: ")[2]
    asked = msgspec.json.decode(last)["outcome"]["interrupts"]
    still = {interrupt_id(record.id, position) for position in story.open}
    return {"interrupts": {"runId": run_id, "pending": [one for one in asked if one["id"] in still]}}


def _chain(turns: list[TurnRecord]) -> list[TurnRecord]:
    """The newest turn and those that it continues: what was regenerated or edited is not shown."""
    by_id = {turn.id: turn for turn in turns}
    chain: list[TurnRecord] = []
    turn = turns[-1] if turns else None
    while turn is not None:
        chain.append(turn)
        turn = by_id.pop(turn.parent_turn_id, None) if turn.parent_turn_id else None
    return chain[::-1]


def _told_elsewhere(first: TurnRecord) -> Iterator[dict[str, Any]]:
    told = msgspec.convert(first.options.get("history", []), list[Message])
    for number, message in enumerate(told):
        if message.role != "tool" and message.content:
            yield _message(f"{first.id}:history-{number}", message.role, message.content, [_text(message.content)])


def _user_message(turn: TurnRecord) -> dict[str, Any]:
    own_id = turn.options.get("message_id") or f"{turn.id}:message"
    return _message(own_id, "user", turn.message, [_text(turn.message)])


def _assistant_messages(turn: TurnRecord, state: TurnState) -> Iterator[dict[str, Any]]:
    steps = [step for step in state.steps if step.kind == "tool" and not step.agent_path]
    parts: list[dict[str, Any]] = []
    told = 0
    for step in steps:
        if text := state.text[told : step.answer_offset]:
            parts.append(_text(text))
        told = step.answer_offset
        parts += _tool_parts(turn.id, step)
    if rest := state.text[told:]:
        parts.append(_text(rest))
    if parts:
        calls = [_call(turn.id, step) for step in steps]
        more = known(outcome=state.outcome, citations=msgspec.to_builtins(state.citations) or None)
        message = _message(f"{turn.id}:answer", "assistant", state.text, parts)
        yield {**message, **({"toolCalls": calls} if calls else {}), **({"metadata": more} if more else {})}


def _tool_parts(turn_id: str, step: Step) -> Iterator[dict[str, Any]]:
    call = _call(turn_id, step)
    states = {"waiting": "approval-requested", "failed": "error", "succeeded": "complete"}
    yield {
        "type": "tool-call",
        "id": call["id"],
        **call["function"],
        "input": step.args or {},
        "state": states.get(step.state, "error"),
    }
    if step.state != "waiting":
        is_done = step.state == "succeeded"
        unanswered = step.state == "running"
        content = result_text(is_done, "The turn ended before this tool did." if unanswered else step.result)
        yield {
            "type": "tool-result",
            "toolCallId": call["id"],
            "content": content,
            "state": "complete" if is_done else "error",
        }


def _call(turn_id: str, step: Step) -> dict[str, Any]:
    function = {"name": step.name, "arguments": msgspec.json.encode(step.args or {}).decode()}
    return {"id": f"{turn_id}:{step.id}", "type": "function", "function": function}


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _message(own_id: str, role: str, content: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": own_id, "role": role, "content": content, "parts": parts}
