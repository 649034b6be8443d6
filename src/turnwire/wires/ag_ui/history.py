"""The messages of a thread, for a page that is opened again."""

from collections.abc import Iterator
from typing import Any

import msgspec

from turnwire.core.errors import SessionNotFoundError
from turnwire.core.log.turns import Message, Step, TurnRecord, TurnState
from turnwire.server.services import Services
from turnwire.server.turns import newest_branch, turn_state
from turnwire.wires.ag_ui.encoder import interrupt_id, result_text
from turnwire.wires.ag_ui.resume import RunName, read_runs
from turnwire.wires.conversation import MAX_TURNS
from turnwire.wires.frames import TOOL_UNFINISHED, omit_none


async def thread_json(services: Services, principal: str, thread_id: str) -> dict[str, Any]:
    """Return a thread's messages, and its unfinished run; an unknown thread is an empty one."""
    try:
        session = await services.store.find_session(principal, thread_id)
    except SessionNotFoundError:
        return {"messages": [], "activeRun": None}
    turns = await services.store.list_turns(principal, session_id=session.id, limit=MAX_TURNS)
    chain = newest_branch(turns)
    first = await services.store.next_turn(session.id, None)
    messages = list(_client_history(first)) if first else []
    shared: Any = None
    for turn in chain:
        if turn.outcome == "joined":
            continue  # Its message is in the turn that it joined.
        messages.append(_user_message(turn))
        if turn.phase in ("waiting", "ended"):
            state = await turn_state(services.store, turn)
            messages += _assistant_messages(turn, state)
            shared = shared if state.shared_state is None else state.shared_state
    thread: dict[str, Any] = {"messages": messages, "activeRun": None, **omit_none(state=shared)}
    if unfinished := await services.store.unfinished(session.id):
        thread.update(await _unfinished_run(services, unfinished[0], thread_id))
    return thread


async def _unfinished_run(services: Services, record: TurnRecord, thread_id: str) -> dict[str, Any]:
    wire = RunName(record).wire(thread_id, 0)
    log = await read_runs(services.store, record.id, wire)
    run_id = RunName(record, len(log.segments)).name
    if not log.open:
        # A run that ended with a call of a client tool cannot be joined: the messages contain the call.
        return {} if log.pause else {"activeRun": {"runId": run_id}}
    last = log.pause.rpartition(b"data: ")[2]
    interrupts = msgspec.json.decode(last)["outcome"]["interrupts"]
    undecided = {interrupt_id(record.id, position) for position in log.open}
    pending = [interrupt for interrupt in interrupts if interrupt["id"] in undecided]
    return {"interrupts": {"runId": run_id, "pending": pending}}


def _client_history(first: TurnRecord) -> Iterator[dict[str, Any]]:
    history = msgspec.convert(first.options.get("history", []), list[Message])
    for number, message in enumerate(history):
        if message.role != "tool" and message.content:
            yield _message(f"{first.id}:history-{number}", message.role, message.content, [_text(message.content)])


def _user_message(turn: TurnRecord) -> dict[str, Any]:
    own_id = turn.options.get("message_id") or f"{turn.id}:message"
    return _message(own_id, "user", turn.message, [_text(turn.message)])


def _assistant_messages(turn: TurnRecord, state: TurnState) -> Iterator[dict[str, Any]]:
    """Yield the answer; in pieces, if the user's messages came in between."""
    steps = [step for step in state.steps if step.kind == "tool" and not step.agent_path]
    offset = 0
    for number, entered in enumerate(state.inputs):
        before = [step for step in steps if step.position < entered.position]
        steps = steps[len(before) :]
        text = state.text[: entered.answer_offset]
        yield from _answer(turn.id, f"{turn.id}:answer-{number}", before, text, offset, {})
        yield _message(f"{entered.turn_id}:message", "user", entered.content, [_text(entered.content)])
        offset = entered.answer_offset
    more = omit_none(outcome=state.outcome, citations=msgspec.to_builtins(state.citations) or None)
    yield from _answer(turn.id, f"{turn.id}:answer", steps, state.text, offset, more)


def _answer(
    turn_id: str, own_id: str, steps: list[Step], text: str, start: int, metadata: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    offset = start
    for step in steps:
        if piece := text[offset : step.answer_offset]:
            parts.append(_text(piece))
        offset = step.answer_offset
        parts += _tool_parts(turn_id, step)
    if rest := text[offset:]:
        parts.append(_text(rest))
    if parts:
        calls = [_call(turn_id, step) for step in steps]
        message = _message(own_id, "assistant", text[start:], parts)
        yield {**message, **({"toolCalls": calls} if calls else {}), **({"metadata": metadata} if metadata else {})}


def _tool_parts(turn_id: str, step: Step) -> Iterator[dict[str, Any]]:
    call = _call(turn_id, step)
    is_open = step.state == "running" and step.runs_on == "client"
    states = {"waiting": "approval-requested", "failed": "error", "succeeded": "complete"}
    yield {
        "type": "tool-call",
        "id": call["id"],
        **call["function"],
        "input": step.args or {},
        "state": "input-complete" if is_open else states.get(step.state, "error"),
    }
    if step.state != "waiting" and not is_open:
        is_done = step.state == "succeeded"
        unanswered = step.state == "running"
        content = result_text(is_done, TOOL_UNFINISHED if unanswered else step.result)
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
