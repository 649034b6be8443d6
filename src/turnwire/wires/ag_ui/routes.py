"""`/ag-ui`: the runs of a thread, their resumption, the messages of a thread, and the stop button."""

from msgspec.structs import replace

from turnwire.server.errors import invalid_request
from turnwire.server.messages import check_id, parse_frame_number
from turnwire.server.request import Request
from turnwire.server.router import Json, Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import START, ResumePoint
from turnwire.server.streams.stream import Stream, location_header, stream_turn, turn_headers
from turnwire.server.turns import stop_turns
from turnwire.wires.ag_ui.conversation import continue_run, start_run
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ag_ui.history import thread_json
from turnwire.wires.ag_ui.messages import RunInput, StopBody
from turnwire.wires.ag_ui.resume import RunName, RunNames, find_in_run

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
        named = await continue_run(services, request.caller, body)
        if named is None:
            named, created = await start_run(services, request.caller, body, request.idempotency_key)
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


def routes() -> list[Route]:
    return _RUNS.routes
