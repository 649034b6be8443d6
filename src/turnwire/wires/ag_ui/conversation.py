"""Where in a thread a message belongs: which turn it continues, and what was said before the thread came here.

Our messages have the id of their turn in front of their own, and of the user's we remember which turn answers them. So
the conversation that is gone on with is the one that the client shows.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.app import Turnwire
from turnwire.core.codec import clean_text
from turnwire.core.contracts import OnBusy
from turnwire.core.errors import ApprovalNotFoundError, SessionNotFoundError
from turnwire.core.turns import Message, Step, TurnRecord, TurnState
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.wires.ag_ui.frames import interrupt_id, known, result_text
from turnwire.wires.ag_ui.messages import ResumeEntry, RunInput, ThreadMessage, history_of
from turnwire.wires.ag_ui.resume import RunName, ThreadLog, read_story

_MOST_TURNS = 200


class RunPlan(Struct, frozen=True, kw_only=True):
    """How a message is to be answered. With `anew` its turn continues none, though it is not the first.

    `history` is what was said elsewhere; the session remembers it from its first turn on.
    """

    parent: TurnRecord | None = None
    anew: bool = False
    history: list[Message] = field(default_factory=list[Message])
    on_busy: OnBusy = "enqueue"


async def plan_for(turnwire: Turnwire, principal: str, body: RunInput) -> RunPlan:
    turns = await _turns_of(turnwire, principal, body.thread_id)
    if not turns:
        most = 2 * turnwire.settings.history_turns
        return RunPlan(history=history_of(body.earlier[-most:]) if most else [])
    by_id = {turn.id: turn for turn in turns}
    parent = next((turn for told in reversed(body.earlier) if (turn := _turn_of(told, turns, by_id))), None)
    anew = parent is None and not body.earlier and _turn_of(body.question, turns, by_id) is not None
    waits = any(turn.phase == "waiting" for turn in turns)
    return RunPlan(
        parent=parent,
        anew=anew,
        # Who writes on instead of deciding does not want what was asked about any more.
        on_busy="interrupt" if waits else "enqueue",
    )


async def _turns_of(turnwire: Turnwire, principal: str, thread_id: str | None) -> list[TurnRecord]:
    if thread_id is None:
        return []
    try:
        session = await turnwire.store.find_session(principal, thread_id)
    except SessionNotFoundError:
        return []
    return await turnwire.store.list_turns(principal, session_id=session.id, limit=_MOST_TURNS)


def _turn_of(told: ThreadMessage, turns: list[TurnRecord], by_id: dict[str, TurnRecord]) -> TurnRecord | None:
    """The turn that a message is of. Simple clients use an id again, so the words must be the same too."""
    if not told.id:
        return None
    if told.role != "user":
        return by_id.get(told.id.partition(":")[0])
    asked = told.id, clean_text(told.text)
    return next((turn for turn in reversed(turns) if (turn.options.get("message_id"), turn.message) == asked), None)


# What a person has decided about interrupts: the decisions of a turn that waits.


def turn_of(entries: list[ResumeEntry]) -> str:
    """The turn that is decided about. Raises ApprovalNotFoundError, HttpError 422."""
    turns = {entry.interrupt_id.rpartition(":")[0] for entry in entries}
    if len(turns) != 1:
        raise HttpError(422, "invalid_request", "resume: the interrupts are of more than one run")
    (turn_id,) = turns
    if not turn_id:
        raise ApprovalNotFoundError(entries[0].interrupt_id)
    return turn_id


async def decide(
    turnwire: Turnwire, caller: Caller, record: TurnRecord, story: ThreadLog, entries: list[ResumeEntry]
) -> int:
    """Takes them, all or none, and returns the number of the run that follows. Repeating them changes nothing.

    Raises ApprovalNotFoundError, ApprovalConflictError, TurnNotWaitingError, HttpError 422.
    """
    decided = {_position(entry, story): (entry, entry.approved) for entry in entries}
    missing = sorted(story.open - decided.keys())
    if missing and not story.open.isdisjoint(decided):
        names = ", ".join(f"{record.id}:{position}" for position in missing)
        raise HttpError(
            422, "invalid_request", f"resume: every open interrupt is decided at once; there is also {names}"
        )
    calls = {asked.event.call_id: position for position, asked in story.asked.items()}
    for position, (entry, approved) in decided.items():
        asked = story.asked[position].event
        if calls[asked.call_id] != position:
            continue  # It was decided long ago, and the call has been asked about again.
        await turnwire.runner.decide(
            record.id, asked.call_id, approved=approved, reason=entry.reason, by=caller.principal, args=entry.args
        )
    return max(story.asked[position].run for position in decided) + 1


def _position(entry: ResumeEntry, story: ThreadLog) -> int:
    number = entry.interrupt_id.rpartition(":")[2]
    position = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
    if position not in story.asked:
        raise ApprovalNotFoundError(entry.interrupt_id)
    return position


# What a thread holds, for a page that is opened anew: its messages, and what runs or waits in it.


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
