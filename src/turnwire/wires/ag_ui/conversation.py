"""A message's place in a thread: the turn it continues, and the client's history of a new thread.

The id of an assistant's message begins with the id of its turn, and each turn keeps the id of the user's message it
answers. So a new turn continues the conversation that the client shows.
"""

from collections.abc import Set

from msgspec import Struct, field

from turnwire.core.contracts.stores import OnBusy
from turnwire.core.errors import ApprovalNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import ApprovalRequestEvent, QuestionEvent
from turnwire.core.log.turns import Message, TurnRecord, TurnState
from turnwire.server.attachments import Attachment
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.messages import parse_count
from turnwire.server.services import Services
from turnwire.server.turns import last_turns, on_busy_for, turn_state
from turnwire.wires.ag_ui.frames import interrupt_id
from turnwire.wires.ag_ui.messages import ResumeEntry, RunInput, ThreadMessage, history_of
from turnwire.wires.ag_ui.resume import ThreadLog
from turnwire.wires.framing import known_call_id

MAX_TURNS = 200


class RunPlan(Struct, frozen=True, kw_only=True):
    """The plan for a message. With `restart` its turn continues none, though it is not the first.

    `history` is the client's, which a new session keeps from its first turn on.
    """

    parent: TurnRecord | None = None
    restart: bool = False
    history: list[Message] = field(default_factory=list[Message])
    history_files: list[Attachment] = field(default_factory=list[Attachment])
    on_busy: OnBusy = "enqueue"


async def plan_for(services: Services, principal: str, body: RunInput) -> RunPlan:
    turns = await last_turns(services, principal, body.thread_id, MAX_TURNS)
    if not turns:
        limit = 2 * services.settings.history_turns
        history, files = history_of(body.earlier[-limit:]) if limit else ([], [])
        return RunPlan(history=history, history_files=files)
    by_id = {turn.id: turn for turn in turns}
    parent = next((turn for message in reversed(body.earlier) if (turn := _turn_of(message, turns, by_id))), None)
    restart = parent is None and not body.earlier and _turn_of(body.question, turns, by_id) is not None
    return RunPlan(parent=parent, restart=restart, on_busy=on_busy_for(services, turns))


def _turn_of(message: ThreadMessage, turns: list[TurnRecord], by_id: dict[str, TurnRecord]) -> TurnRecord | None:
    """Return the turn of a message. Simple clients reuse ids, so the text must be the same too."""
    if not message.id:
        return None
    if message.role != "user":
        return by_id.get(message.id.partition(":")[0])
    key = message.id, clean_text(message.text)
    return next((turn for turn in reversed(turns) if (turn.options.get("message_id"), turn.message) == key), None)


# Answers


def turn_of(entries: list[ResumeEntry], results: list[ThreadMessage]) -> str | None:
    """Return the id of the turn that waits for the entries or results; None if there are none of a turn.

    Raises ApprovalNotFoundError, HttpError 422.
    """
    if not entries:
        named = (result.tool_call_id.partition(":")[0] for result in reversed(results) if result.tool_call_id)
        return next(filter(is_own_id, named), None)
    turns = {entry.interrupt_id.rpartition(":")[0] for entry in entries}
    if len(turns) != 1:
        raise HttpError(422, "invalid_request", "resume: answer the interrupts of one run at a time")
    (turn_id,) = turns
    if not turn_id:
        raise ApprovalNotFoundError(entries[0].interrupt_id)
    return turn_id


async def answer(services: Services, caller: Caller, record: TurnRecord, log: ThreadLog, body: RunInput) -> int | None:
    """Take what the turn waits for: answers to all interrupts, and results of the client's tools; or nothing.

    Return the number of the run that follows, None if there is nothing to take. Repeating answers changes nothing.
    Raises ApprovalNotFoundError, the errors of `TurnRunner.decide`, `reply` and `send_tool_result`, HttpError 422.
    """
    answered = {_position(entry, log): entry for entry in body.resume or ()}
    results = {call_id: result for result in body.results if (call_id := _client_call(result, record, log)) is not None}
    if not answered and not results:
        return None
    _check_complete(record, log, answered.keys(), await turn_state(services.store, record), results.keys())
    decisions = {
        position: entry.approved
        for position, entry in answered.items()
        if isinstance(log.requests[position].event, ApprovalRequestEvent)
    }
    for call_id, result in results.items():
        await services.runner.send_tool_result(
            record.id, call_id, result.error or result.text, is_error=result.error is not None
        )
    for position, entry in answered.items():
        await _answer_interrupt(services, caller, record, log, position, entry, decisions.get(position))
    runs = [log.requests[position].run for position in answered]
    return max([*runs, *(log.client_calls[call_id] for call_id in results)]) + 1


def _check_complete(
    record: TurnRecord, log: ThreadLog, answered: Set[int], state: TurnState, results: Set[str]
) -> None:
    """Raise HttpError 422 if only a part of what the turn waits for is answered: no run could follow."""
    calls = {step.id for step in state.steps if step.runs_on == "client" and step.state == "running"}
    if log.open.isdisjoint(answered) and calls.isdisjoint(results):
        return  # A repeated request.
    missing = [interrupt_id(record.id, position) for position in sorted(log.open - answered)]
    missing += [f"{record.id}:{call_id}" for call_id in sorted(calls - results)]
    if missing:
        names = ", ".join(missing)
        raise HttpError(422, "invalid_request", f"resume: answer everything that is open at once; missing: {names}")


async def _answer_interrupt(
    services: Services,
    caller: Caller,
    record: TurnRecord,
    log: ThreadLog,
    position: int,
    entry: ResumeEntry,
    approved: bool | None,
) -> None:
    request = log.requests[position].event
    if isinstance(request, QuestionEvent):
        declined = entry.status == "cancelled"
        value = None if declined else entry.payload
        await services.runner.reply(record.id, request.id, value, declined=declined, by=caller.principal)
        return
    newest = max(at for at, other in log.requests.items() if _is_about(other.event, request.call_id))
    if newest != position:
        return  # Decided long ago; there is a newer request about the same call.
    is_edited = request.editable and entry.args not in (None, request.args)
    await services.runner.decide(
        record.id,
        request.call_id,
        approved=approved is True,
        reason=entry.reason,
        by=caller.principal,
        args=None if is_edited else entry.args,
        edited_args=entry.args if is_edited else None,
    )


def _is_about(event: ApprovalRequestEvent | QuestionEvent, call_id: str) -> bool:
    return isinstance(event, ApprovalRequestEvent) and event.call_id == call_id


def _client_call(result: ThreadMessage, record: TurnRecord, log: ThreadLog) -> str | None:
    """Return the id of the client's call that a tool message answers; None for a call of the server's."""
    turn_id, _, shown_id = (result.tool_call_id or "").partition(":")
    return known_call_id(shown_id, log.client_calls) if turn_id == record.id else None


def _position(entry: ResumeEntry, log: ThreadLog) -> int:
    position = parse_count(entry.interrupt_id.rpartition(":")[2])
    if position is None or position not in log.requests:
        raise ApprovalNotFoundError(entry.interrupt_id)
    return position
