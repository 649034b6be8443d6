"""`/ag-ui`: runs of a thread, their resumption, what a thread holds, and the stop button."""

import re
from typing import Any

from msgspec.structs import replace

from turnwire.app import Turnwire
from turnwire.core.codec import ascii_json
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import (
    STREAM_HEADERS,
    OpenStream,
    Request,
    Routes,
    idempotency_key,
    read_json,
    turn_headers,
)
from turnwire.server.guard import Headers
from turnwire.server.messages import check_id, query_of
from turnwire.server.payloads import respond, respond_json
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.resume import ResumePoint
from turnwire.server.streams.stream import TextStream
from turnwire.wires.ag_ui.conversation import decide, hydrated, plan_for, turn_of
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ag_ui.messages import ResumeEntry, RunInput, StopBody, parse_input, parse_stop, run_message_body
from turnwire.wires.ag_ui.resume import LaterRuns, RunName, frame_number, place_of_run, read_story


class AgUiRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire
        self._later = LaterRuns()
        self.routes: Routes = (
            ("POST", re.compile("/ag-ui"), self.run),
            ("GET", re.compile("/ag-ui"), self.read),
            ("POST", re.compile("/ag-ui/stop"), self.stop),
        )

    async def run(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> OpenStream:
        """Starts a turn, joins the one that the run names, or goes on with one that has waited for decisions."""
        caller.needs("write")
        body = parse_input(await read_json(receive, headers))
        if body.run_id is None and (told := headers.get(b"x-run-id", b"").decode("latin-1")):
            body = body.model_copy(update={"run_id": check_id(told)})
        after = _last_event(headers) or 0
        with self._turnwire.streams.room(caller.principal):
            if body.resume:
                run = await self._resumed(caller, body, body.resume)
            else:
                run = RunName(await self._started(caller, body, idempotency_key(headers)), given=body.run_id or "")
            wire = run.wire(body.thread_id or run.record.session_id, body.version)
            place = await place_of_run(self._turnwire, run, wire, after)
            return self._open(scope, caller, run, place, wire, added)

    async def _started(self, caller: Caller, body: RunInput, key: str | None) -> TurnRecord:
        plan = await plan_for(self._turnwire, caller.principal, body)
        accepted = await self._turnwire.start(
            caller.principal,
            run_message_body(body, plan.on_busy),
            key,
            parent=plan.parent,
            anew=plan.anew,
            history=plan.history,
            channel="ag_ui",
        )
        return accepted.record

    async def _resumed(self, caller: Caller, body: RunInput, entries: list[ResumeEntry]) -> RunName:
        """Takes the decisions; the run that follows them is the one that is asked for."""
        caller.needs("approve")
        turnwire, principal = self._turnwire, caller.principal
        record = await turnwire.store.find_turn(principal, turn_of(entries))
        if body.thread_id is not None:
            session = await turnwire.store.find_session(principal, body.thread_id)
            if session.id != record.session_id:
                raise TurnNotFoundError(record.id)
        story = await read_story(turnwire, record.id, AgUi(version=body.version))
        number = await decide(turnwire, caller, record, story, entries)
        record = await turnwire.store.find_turn(principal, record.id)
        run = RunName(record, number, body.run_id or "", body.parent_run_id or "")
        self._later.remember(principal, run)
        return run

    async def read(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> OpenStream | None:
        """A run from its start or after a frame; or what a thread holds, as JSON."""
        caller.needs("read")
        query, turnwire = query_of(scope), self._turnwire
        if "runId" not in query:
            if "threadId" not in query:
                raise HttpError(422, "invalid_request", "send a runId to read a run, or a threadId for its messages")
            held = await hydrated(turnwire, caller.principal, check_id(query["threadId"]))
            await respond_json(send, 200, ascii_json(held), added)
            return None
        run = await self._later.find(turnwire, caller.principal, check_id(query["runId"]))
        offset, after = query.get("offset", "-1"), _last_event(headers)
        if after is None:
            after = 0 if offset == "-1" else frame_number(offset, "offset")
        session = await turnwire.store.find_session(caller.principal, run.record.session_id)
        wire = run.wire(session.external_id or session.id, 1 if query.get("version") == "1" else 0)
        place = await place_of_run(turnwire, run, wire, after)
        if place.is_end and not place.rest:
            await respond(send, 204, b"", added)
            return None
        with turnwire.streams.room(caller.principal):
            return self._open(scope, caller, run, place, wire, added)

    async def stop(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """Stops a run, or a thread, the newest turn first, so that none begins when the one before it ends."""
        caller.needs("write")
        body, store = parse_stop(await read_json(receive, headers)), self._turnwire.store
        if body.run_id is not None:
            turns = [(await self._later.find(self._turnwire, caller.principal, body.run_id)).record]
        elif body.thread_id is not None:
            session = await store.find_session(caller.principal, body.thread_id)
            most = self._turnwire.settings.max_queued_turns + 2
            turns = await store.list_turns(caller.principal, session_id=session.id, limit=most)
        else:
            raise HttpError(422, "invalid_request", "send a runId to stop a run, or a threadId to stop all in it")
        turns = [turn for turn in turns if turn.phase != "ended"]
        for turn in reversed(turns):
            await self._turnwire.runner.cancel(turn.id)
        await respond_json(send, 200, ascii_json({"stopped": [RunName(turn).first for turn in turns]}), added)

    def _open(
        self, scope: Request, caller: Caller, run: RunName, place: ResumePoint, wire: AgUi, added: Headers
    ) -> TextStream:
        turnwire = self._turnwire
        return TextStream(
            turnwire.streams,
            turnwire.runner,
            turnwire.store,
            caller,
            run.record,
            replace(place, rest=wire.opening + place.rest),
            turnwire.settings.text_start_timeout,
            wire,
            _headers(scope, wire, run, added),
            [*added, *turn_headers(run.record)],
        )


def _headers(scope: Request, wire: AgUi, run: RunName, added: Headers) -> Headers:
    location = f"{scope.get('root_path', '')}/ag-ui?runId={run.name}&version={wire.version}"
    return [
        *added,
        *STREAM_HEADERS,
        (b"content-type", wire.media_type.encode("ascii")),
        (b"x-run-id", run.name.encode("ascii")),
        *turn_headers(run.record),
        (b"location", location.encode("ascii")),
    ]


def _last_event(headers: dict[bytes, bytes]) -> int | None:
    """The last frame that the client has. Raises BadCursorError."""
    told = headers.get(b"last-event-id", b"").decode("latin-1")
    return frame_number(told, "Last-Event-ID") if told else None


# These routes for the OpenAPI page.


_STREAM: dict[str, Any] = {"200": {"description": "AG-UI events", "content": {"text/event-stream": {}}}}
_LAST = "The last id received; the stream goes on after it."


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "description": description, "schema": {"type": "string"}}


def _body(model: type[RunInput] | type[StopBody]) -> dict[str, Any]:
    place = "#/paths/~1ag-ui/post/requestBody/content/application~1json/schema/$defs/{model}"
    schema = model.model_json_schema(by_alias=True, ref_template=place)
    return {"required": True, "content": {"application/json": {"schema": schema}}}


PATHS: dict[str, Any] = {
    "/ag-ui": {
        "post": {
            "tags": ["ag-ui"],
            "summary": "Run a thread's agent: ask, join a run, or decide about interrupts",
            "parameters": [_parameter("Last-Event-ID", "header", _LAST)],
            "requestBody": _body(RunInput),
            "responses": _STREAM,
        },
        "get": {
            "tags": ["ag-ui"],
            "summary": "A run again, or the messages of a thread",
            "parameters": [
                _parameter("runId", "query", "The run to read."),
                _parameter("offset", "query", "-1 for the whole run, or the last id received."),
                _parameter("Last-Event-ID", "header", _LAST),
                _parameter("threadId", "query", "Without a runId: the thread whose messages are wanted, as JSON."),
                _parameter("version", "query", "1 for a client of AG-UI 1.0; 0, the default, for others."),
            ],
            "responses": {
                **_STREAM,
                "204": {"description": "The run has ended and you have all of it"},
                "416": {"description": "There are not so many frames"},
            },
        },
    },
    "/ag-ui/stop": {
        "post": {
            "tags": ["ag-ui"],
            "summary": "Stop a run, or all that runs, waits or is queued in a thread; answers when it has stopped",
            "requestBody": _body(StopBody),
            "responses": {"200": {"description": "What was stopped", "content": {"application/json": {}}}},
        }
    },
}
