"""A message's place in a thread: the turn it continues, and the answers that a turn waits for.

The id of an assistant's message begins with the id of its turn, and each turn keeps the id of the user's message it
answers. So a new turn continues the conversation that the client shows.
"""

from turnwire.core.errors import ApprovalNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import ApprovalRequestEvent, QuestionEvent
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.suspension import Answer, ClientResultAnswer, DecisionAnswer, ReplyAnswer
from turnwire.server.auth import Caller
from turnwire.server.errors import invalid_request
from turnwire.server.messages import parse_count
from turnwire.server.services import Services
from turnwire.server.turns import Place, last_turns, on_busy_for, start_turn, turn_state
from turnwire.wires.ag_ui.encoder import AgUi, interrupt_id
from turnwire.wires.ag_ui.messages import ResumeEntry, RunInput, ThreadMessage, history_of, run_message_body
from turnwire.wires.ag_ui.resume import RunName, ThreadLog, read_runs
from turnwire.wires.conversation import MAX_TURNS, find_turn_in, kept_messages, missing_answers, record_answers
from turnwire.wires.frames import known_call_id
from turnwire.wires.progress import open_client_calls


async def start_run(services: Services, caller: Caller, body: RunInput, key: str | None) -> tuple[RunName, bool]:
    """Start the turn of a run, or join it. Return the run, and True if its turn was created."""
    turns = await last_turns(services, caller.principal, body.thread_id, MAX_TURNS)
    message = run_message_body(body, await on_busy_for(services, turns))
    place = _place(services, body, turns)
    accepted = await start_turn(services, caller.principal, message, key, place=place, channel="ag_ui")
    return RunName(accepted.record, client_name=body.run_id or ""), accepted.created


def _place(services: Services, body: RunInput, turns: list[TurnRecord]) -> Place:
    """Return the place of a message: after the newest known message, or in a new thread."""
    if not turns:
        return history_of(kept_messages(services, body.earlier)).place
    parent = next((turn for message in reversed(body.earlier) if (turn := _turn_of(message, turns))), None)
    return Place(parent=parent, restart=not body.earlier and _turn_of(body.question, turns) is not None)


def _turn_of(message: ThreadMessage, turns: list[TurnRecord]) -> TurnRecord | None:
    """Return the turn of a message. Simple clients reuse ids, so the text must be the same too."""
    if not message.id:
        return None
    if message.role != "user":
        turn_id = message.id.partition(":")[0]
        return next((turn for turn in turns if turn.id == turn_id), None)
    key = message.id, clean_text(message.text)
    return next((turn for turn in reversed(turns) if (turn.options.get("message_id"), turn.message) == key), None)


# Answers


async def continue_run(services: Services, caller: Caller, body: RunInput) -> RunName | None:
    """Take what a turn waits for: answers to all interrupts, and results of the client's tools.

    Return the run that follows; None if there is nothing to take. Raises ApprovalNotFoundError, TurnNotFoundError, the
    errors of `TurnRunner.answer`, HttpError 403, 422.
    """
    turn_id = _waiting_turn(body.resume or [], body.results)
    if turn_id is None:
        return None
    record = await find_turn_in(services, caller, turn_id, body.thread_id)
    log = await read_runs(services.store, record.id, AgUi(version=body.version))
    entries = {_position(entry, log): entry for entry in body.resume or ()}
    results = {call_id: result for result in body.results if (call_id := _client_call(result, record, log)) is not None}
    if not entries and not results:
        return None
    await _check_complete(services, record, log, [*entries], [*results])
    answers: list[Answer] = [
        ClientResultAnswer(call_id=call_id, output=result.error or result.text, is_error=result.error is not None)
        for call_id, result in results.items()
    ]
    answers += [
        answer
        for position, entry in entries.items()
        if (answer := _answer_to(log, position, entry, caller.principal)) is not None
    ]
    record = await record_answers(services, caller, record, answers)
    runs = [*(log.requests[position].run for position in entries), *(log.client_calls[call_id] for call_id in results)]
    return RunName(record, max(runs) + 1, body.run_id or "", body.parent_run_id or "")


def _waiting_turn(entries: list[ResumeEntry], results: list[ThreadMessage]) -> str | None:
    """Return the id of the turn that waits for the entries or results; None if there are none of a turn."""
    if not entries:
        named = (result.tool_call_id.partition(":")[0] for result in reversed(results) if result.tool_call_id)
        return next(filter(is_own_id, named), None)
    turns = {entry.interrupt_id.rpartition(":")[0] for entry in entries}
    if len(turns) != 1:
        raise invalid_request("resume: answer the interrupts of one run at a time")
    (turn_id,) = turns
    if not turn_id:
        raise ApprovalNotFoundError(entries[0].interrupt_id)
    return turn_id


async def _check_complete(
    services: Services, record: TurnRecord, log: ThreadLog, positions: list[int], call_ids: list[str]
) -> None:
    """Raise HttpError 422 if only a part of what the turn waits for is answered: no run could follow."""

    def names(positions: list[int], call_ids: list[str]) -> list[str]:
        return [*(interrupt_id(record.id, at) for at in positions), *(f"{record.id}:{name}" for name in call_ids)]

    calls = [step.id for step in open_client_calls(await turn_state(services.store, record))]
    if missing := missing_answers(names(sorted(log.open), sorted(calls)), names(positions, call_ids)):
        message = f"resume: answer everything that is open at once; missing: {', '.join(missing)}"
        raise invalid_request(message)


def _answer_to(log: ThreadLog, position: int, entry: ResumeEntry, by: str) -> Answer | None:
    """Return the answer to an interrupt; None if there is a newer one about the same call."""
    request = log.requests[position].event
    if isinstance(request, QuestionEvent):
        declined = entry.status == "cancelled"
        return ReplyAnswer(question_id=request.id, value=None if declined else entry.payload, declined=declined, by=by)
    approved, args = entry.approved, entry.args
    if position != max(at for at, other in log.requests.items() if _is_about(other.event, request.call_id)):
        return None
    is_edited = request.editable and args not in (None, request.args)
    seen, edited = (None, args) if is_edited else (args, None)
    return DecisionAnswer(
        call_id=request.call_id, approved=approved, reason=entry.reason, by=by, args=seen, edited_args=edited
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
