"""Turns: their snapshots and logs, stopping them, the answers that they wait for, and feedback on them.

The events of a turn are a stream, which `wires.sse_chat.routes` has.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext

import msgspec
from pydantic import BaseModel, Field

from turnwire.core.contracts.stores import Annotation, TurnFilter, TurnStatus
from turnwire.core.errors import SealNotFoundError
from turnwire.core.log.codec import ascii_json, now_ms, time_text
from turnwire.core.log.seals import root_of
from turnwire.core.log.turns import TurnRecord
from turnwire.core.metrics import FEEDBACK
from turnwire.core.run.runner import ForkRequest
from turnwire.recordings.recording import encode_recording, record_turn, recorded_history
from turnwire.server.errors import HttpError
from turnwire.server.messages import ApprovalBody, FeedbackBody, ForkBody, ReplyBody, ToolResultBody
from turnwire.server.request import Request
from turnwire.server.router import Json, Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.turns import snapshot_json, turn_json, turn_state

_TURNS = RouteGroup("turns")
_FEEDBACK = RouteGroup("feedback")
_KEY = Parameter("Idempotency-Key", "header", "The same key again joins the same turn.")
_TURN = response("The turn", "application/json")
_MAX_CALL_ID = 256


class TurnsQuery(BaseModel):
    """A page of turns."""

    session: str | None = Field(None, max_length=128, description="Only turns of this session.")
    agent: str | None = Field(None, max_length=128, description="Only turns of this agent.")
    status: TurnStatus | None = Field(None, description="The phase of an unfinished turn, or an outcome.")
    search: str | None = Field(None, max_length=200, description="Only turns whose message has this text.")
    before: str | None = Field(None, max_length=128, description="Only turns before this one.")
    after: str | None = Field(None, max_length=128, description="Only the next turns after this one.")
    limit: int = Field(50, ge=1, le=200)


class FeedbackQuery(BaseModel):
    """A page of feedback."""

    before: str | None = Field(None, max_length=128, description="The last turn id of the page before.")
    limit: int = Field(50, ge=1, le=200)


@_TURNS.route("GET", "/v1/turns", "List your turns, newest first", query=TurnsQuery)
async def list_turns(request: Request, services: Services) -> Json:
    query, principal = request.parse_query(TurnsQuery), request.caller.principal
    session_id = None if query.session is None else (await services.store.find_session(principal, query.session)).id
    where = TurnFilter(
        agent=query.agent, status=query.status, search=query.search, before=query.before, after=query.after
    )
    async with services.searches.slot(principal) if query.search else nullcontext():
        turns = await services.store.list_turns(principal, session_id=session_id, limit=query.limit + 1, where=where)
    page = turns[-query.limit :] if query.after is None else turns[: query.limit]
    return {"turns": [turn_json(turn) for turn in reversed(page)], "more": len(turns) > query.limit}


@_TURNS.route("GET", "/v1/turns/{id}", "A turn's state so far, and the position to continue from")
async def show_turn(request: Request, services: Services) -> Json:
    return await _snapshot(services, await _find(request, services))


@_TURNS.route(
    "GET",
    "/v1/turns/{id}/recording",
    "An ended turn with its journal, as a file for `turnwire replay`",
    access="operate",
    responses={"200": response("The recording", "application/jsonl")},
)
async def show_recording(request: Request, services: Services) -> None:
    # The journal has more than the log shows: replies and results as the agent got them. So the turn must be the
    # caller's own, and the key must have been given the scope `operate` as well.
    record, settings = await _find(request, services), services.settings
    history = await recorded_history(services.store, record, settings.history_turns, settings.history_tokens)
    body = encode_recording(await record_turn(services.store, record, history))
    disposition = f'attachment; filename="recording-{record.id}.jsonl"'
    headers = [
        (b"content-type", b"application/jsonl"),
        (b"content-length", str(len(body)).encode()),
        (b"content-disposition", disposition.encode()),
        (b"cache-control", b"no-store"),
    ]
    await request.respond(200, body, headers)


@_TURNS.route("GET", "/v1/turns/{id}/seal", "The seal of an ended turn, to check its log with")
async def show_seal(request: Request, services: Services) -> Json:
    record = await _find(request, services)
    found = await services.store.seal(record.id)
    if found is None:
        raise SealNotFoundError(record.id)
    return {"version": 1, **msgspec.to_builtins(found), "root": root_of(found)}


@_TURNS.route(
    "POST",
    "/v1/turns/{id}/cancel",
    "Stop a turn; answers when it has stopped, also if it had before",
    responses={
        "200": _TURN,
        "202": response("The turn has not stopped in time; the command stands, and its worker obeys it"),
    },
)
async def cancel(request: Request, services: Services) -> None:
    record = await _find(request, services)
    await services.runner.cancel(record.id)
    snapshot = await _snapshot_again(services, record)
    await request.respond_json(200 if snapshot["phase"] == "ended" else 202, snapshot)


@_TURNS.route(
    "POST",
    "/v1/turns/{id}/fork",
    "Start a turn that shares this one's log up to a position",
    parameters=[_KEY],
    body=ForkBody,
    responses={"201": _TURN},
)
async def fork(request: Request, services: Services) -> None:
    body, source, key = await request.parse_body(ForkBody), await _find(request, services), request.idempotency_key
    accepted = await services.runner.fork(
        ForkRequest(
            source=source,
            position=body.position,
            message=body.message,
            agent=body.agent,
            model=body.model,
            by=request.caller.principal,
            idempotency_key=key,
            fingerprint=body.fingerprint(source.id) if key else "",
            on_busy=body.on_busy,
        )
    )
    snapshot = await _snapshot_again(services, accepted.record)
    await request.respond_json(201 if accepted.created else 200, snapshot)


@_TURNS.route(
    "POST",
    "/v1/turns/{id}/approvals/{call_id}",
    "Allow or deny a tool call that a turn waits for",
    access="approve",
    body=ApprovalBody,
)
async def approve(request: Request, services: Services) -> Json:
    body, record, call_id = await request.parse_body(ApprovalBody), await _find(request, services), _call_id(request)
    await services.runner.answer(record.id, body.answer(call_id, request.caller.principal))
    return await _snapshot_again(services, record)


@_TURNS.route(
    "POST", "/v1/turns/{id}/replies", "Answer a question that a turn waits for", access="approve", body=ReplyBody
)
async def reply(request: Request, services: Services) -> Json:
    body, record = await request.parse_body(ReplyBody), await _find(request, services)
    await services.runner.answer(record.id, body.answer(request.caller.principal))
    return await _snapshot_again(services, record)


@_TURNS.route(
    "POST", "/v1/turns/{id}/tool-results", "Send the result of a tool that the client has run", body=ToolResultBody
)
async def send_tool_result(request: Request, services: Services) -> Json:
    body, record = await request.parse_body(ToolResultBody), await _find(request, services)
    await services.runner.answer(record.id, body.answer())
    return await _snapshot_again(services, record)


async def _find(request: Request, services: Services) -> TurnRecord:
    return await services.store.find_turn(request.caller.principal, request.id_param())


def _call_id(request: Request) -> str:
    call_id = request.params["call_id"]
    if len(call_id) > _MAX_CALL_ID:
        raise HttpError(404, "not_found", "no call has this id")
    return call_id


async def _snapshot_again(services: Services, record: TurnRecord) -> Json:
    return await _snapshot(services, await services.store.find_turn(record.principal, record.id))


async def _snapshot(services: Services, record: TurnRecord) -> Json:
    state = await turn_state(services.store, record)
    return {**snapshot_json(record, state), "feedback": await turn_feedback(services, record)}


# Feedback: a value and a note, stored beside the log, which stays as it ended


@_FEEDBACK.route(
    "PUT", "/v1/turns/{id}/feedback", "Rate a turn, with a note; a null value withdraws the rating", body=FeedbackBody
)
async def rate(request: Request, services: Services) -> Json:
    body, record = await request.parse_body(FeedbackBody), await _find(request, services)
    if body.value is None:
        await services.store.remove_annotations("feedback", record.principal, key=record.id)
        return {"turn_id": record.id, "feedback": None}
    annotation = Annotation(
        kind="feedback",
        key=record.id,
        principal=record.principal,
        at=now_ms(),
        value=ascii_json({"value": body.value, "note": body.note}).decode("ascii"),
        session_id=record.session_id,
        turn_id=record.id,
    )
    await services.store.annotate(annotation)
    FEEDBACK.add(body.value)
    return {"turn_id": record.id, "feedback": _feedback_json(annotation)}


@_FEEDBACK.route(
    "GET", "/v1/feedback", "Your feedback, newest turns first; everybody's for the scope `operate`", query=FeedbackQuery
)
async def list_feedback(request: Request, services: Services) -> Json:
    query, caller = request.parse_query(FeedbackQuery), request.caller
    principal = None if "operate" in caller.scopes else caller.principal
    found = await services.store.list_annotations("feedback", principal, before=query.before, limit=query.limit + 1)
    page = found[: query.limit]
    return {
        "feedback": [
            {
                "turn_id": annotation.turn_id,
                "session_id": annotation.session_id,
                "principal": annotation.principal,
                **_feedback_json(annotation),
            }
            for annotation in page
        ],
        "next": page[-1].key if len(found) > query.limit else None,
    }


async def turn_feedback(services: Services, record: TurnRecord) -> Json | None:
    """Return the feedback on a turn; None if there is none."""
    annotation = await services.store.find_annotation("feedback", record.id)
    return _feedback_json(annotation) if annotation is not None else None


async def session_feedback(services: Services, turns: Sequence[TurnRecord]) -> dict[str, Json]:
    """Return the feedback on turns of one session, by their ids."""
    if not turns:
        return {}
    principal, session_id = turns[0].principal, turns[0].session_id
    # The keys are turn ids, which grow with time: the feedback on the newest turns comes first.
    found = await services.store.list_annotations("feedback", principal, session_id=session_id, limit=len(turns))
    return {annotation.key: _feedback_json(annotation) for annotation in found}


def _feedback_json(annotation: Annotation) -> Json:
    return {**json.loads(annotation.value), "at": time_text(annotation.at)}


def routes() -> list[Route]:
    return [*_TURNS.routes, *_FEEDBACK.routes]
