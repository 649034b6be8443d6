"""`/ag-ui`: the runs of a thread, their resumption, the messages of a thread, and the stop button.

The id of an assistant's message begins with the id of its turn, and each turn keeps the id of the user's message it
answers. So a new turn continues the conversation that the client shows.
"""

from msgspec.structs import replace

from turnwire.core.errors import ApprovalNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import ApprovalRequestEvent, QuestionEvent
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.suspension import Answer, ClientResultAnswer, DecisionAnswer, ReplyAnswer
from turnwire.server.auth import Caller
from turnwire.server.errors import invalid_request
from turnwire.server.messages import check_id, parse_count, parse_frame_number
from turnwire.server.request import Request
from turnwire.server.router import Json, Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import START, ResumePoint
from turnwire.server.streams.stream import Stream, location_header, stream_turn, turn_headers
from turnwire.server.turns import Place, last_turns, on_busy_for, start_turn, stop_turns, turn_state
from turnwire.wires.ag_ui.encoder import AgUi, interrupt_id
from turnwire.wires.ag_ui.history import thread_json
from turnwire.wires.ag_ui.messages import ResumeEntry, RunInput, StopBody, ThreadMessage, history_of, run_message_body
from turnwire.wires.ag_ui.resume import RunName, RunNames, ThreadLog, find_in_run, read_runs
from turnwire.wires.conversation import MAX_TURNS, find_turn_in, kept_messages, missing_answers, record_answers
from turnwire.wires.frames import known_call_id
from turnwire.wires.progress import open_client_calls

_RUNS = RouteGroup("ag-ui", takes_slot=False)
_LAST_ID = Parameter("Last-Event-ID", "header", "The last id received; the stream continues after it.")
_STREAM = {"200": response("AG-UI events", "text/event-stream")}


@_RUNS.route(
    "POST",
    "/ag-ui",
    "Run a thread's agent: send a message, join a run, or send what a turn waits for",
    parameters=[_LAST_ID],
    body=RunInput,
    responses=_STREAM,
    takes_files=True,
)
async def run(request: Request, services: Services) -> Stream:
    """Start a turn, join the one that the run names, or continue one that has waited for answers."""
    body = await request.parse_body(RunInput)
    if body.run_id is None and (run_id := request.header(b"x-run-id")):
        body = body.model_copy(update={"run_id": check_id(run_id)})
    after = _last_event(request) or 0
    with services.streams.room(request.caller.principal):
        created = False
        named = await _continue_run(services, request.caller, body)
        if named is None:
            named, created = await _start_run(services, request.caller, body, request.idempotency_key)
        else:
            services.of(RunNames).remember(request.caller.principal, named)
        wire = named.wire(body.thread_id or named.record.session_id, body.version)
        is_new = created and not after
        point = START if is_new else await find_in_run(services.store, named, wire, after)
        return _stream(request, services, named, wire, point)


@_RUNS.route(
    "GET",
    "/ag-ui",
    "A run again, or the messages of a thread",
    parameters=[
        Parameter("runId", "query", "The run to read."),
        Parameter("offset", "query", "-1 for the whole run, or the last id received."),
        _LAST_ID,
        Parameter("threadId", "query", "Without a runId: the thread whose messages to answer with, as JSON."),
        Parameter("version", "query", "1 for a client of AG-UI 1.0; 0, the default, for others."),
    ],
    responses={
        **_STREAM,
        "204": response("The run has ended and you have all of it"),
        "416": response("There are not so many frames"),
    },
)
async def read(request: Request, services: Services) -> Stream | None:
    """Stream a run from its start or after a frame; or answer with a thread's messages as JSON."""
    query, principal = request.query, request.caller.principal
    if "runId" not in query:
        if "threadId" not in query:
            raise invalid_request("send a runId to read a run, or a threadId for its messages")
        thread_id = check_id(query["threadId"])
        async with services.requests.slot(principal):
            await request.respond_json(200, await thread_json(services, principal, thread_id))
            await request.answer_taken(services.settings.write_timeout)
        return None
    named = await services.of(RunNames).find(principal, check_id(query["runId"]))
    offset, after = query.get("offset", "-1"), _last_event(request)
    if after is None:
        after = 0 if offset == "-1" else parse_frame_number(offset, "offset")
    session = await services.store.find_session(principal, named.record.session_id)
    wire = named.wire(session.external_id or session.id, 1 if query.get("version") == "1" else 0)
    point = await find_in_run(services.store, named, wire, after)
    if point.is_end and not point.rest:
        await request.respond(204)
        return None
    with services.streams.room(principal):
        return _stream(request, services, named, wire, point)


@_RUNS.route(
    "POST",
    "/ag-ui/stop",
    "Stop a run, or a thread's turns that run, wait or are queued; answers when they have stopped",
    body=StopBody,
    responses={"200": response("The runs that were stopped", "application/json")},
)
async def stop(request: Request, services: Services) -> Json:
    """Stop a run, or all unfinished runs of a thread."""
    body, principal = await request.parse_body(StopBody), request.caller.principal
    if body.run_id is not None:
        turns = [(await services.of(RunNames).find(principal, body.run_id)).record]
    elif body.thread_id is not None:
        session = await services.store.find_session(principal, body.thread_id)
        turns = await services.store.unfinished(session.id)
    else:
        raise invalid_request("send a runId to stop a run, or a threadId to stop all in it")
    stopped = await stop_turns(services, turns)
    return {"stopped": [RunName(turn).first for turn in stopped]}


def _stream(request: Request, services: Services, named: RunName, wire: AgUi, point: ResumePoint) -> Stream:
    headers = [
        (b"x-run-id", named.name.encode("ascii")),
        *turn_headers(named.record),
        location_header(request, f"/ag-ui?runId={named.name}&version={wire.version}"),
    ]
    point = replace(point, rest=wire.opening + point.rest)
    return stream_turn(request, services, named.record, wire, point, headers)


def _last_event(request: Request) -> int | None:
    """Return the number of the last frame that the client has. Raises BadCursorError."""
    text = request.header(b"last-event-id")
    return parse_frame_number(text, "Last-Event-ID") if text else None


# Messages


async def _start_run(services: Services, caller: Caller, body: RunInput, key: str | None) -> tuple[RunName, bool]:
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


async def _continue_run(services: Services, caller: Caller, body: RunInput) -> RunName | None:
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


def routes() -> list[Route]:
    return _RUNS.routes
