"""Turns: their snapshots and logs, stopping them, the answers that they wait for, and feedback on them.

The events of a turn are a stream, which `wires.sse_chat.routes` has.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Path, Query, Response

from turnwire.core.contracts.stores import Annotation, TurnFilter, TurnStatus
from turnwire.core.errors import SealNotFoundError
from turnwire.core.log.codec import ascii_json, now_ms, time_text
from turnwire.core.log.seals import root_of
from turnwire.core.log.turns import TurnRecord
from turnwire.core.metrics import FEEDBACK
from turnwire.core.run.runner import ForkRequest
from turnwire.recordings.recording import encode_recording, record_turn, recorded_history
from turnwire.server.api.dependencies import Approving, Json, Operating, PathId, Reading, ServicesDep, Writing
from turnwire.server.messages import ApprovalBody, FeedbackBody, ForkBody, ReplyBody, ToolResultBody, check_key
from turnwire.server.services import Services
from turnwire.server.turns import snapshot_json, turn_json, turn_state

router = APIRouter(prefix="/v1/turns", tags=["turns"])
feedback_router = APIRouter(tags=["feedback"])


@router.get("", summary="List your turns, newest first")
async def index(
    services: ServicesDep,
    caller: Reading,
    session: Annotated[str | None, Query(max_length=128, description="Only turns of this session.")] = None,
    agent: Annotated[str | None, Query(max_length=128, description="Only turns of this agent.")] = None,
    status: Annotated[TurnStatus | None, Query(description="The phase of an unfinished turn, or an outcome.")] = None,
    search: Annotated[str | None, Query(max_length=200, description="Only turns whose message has this text.")] = None,
    before: Annotated[str | None, Query(max_length=128, description="Only turns before this one.")] = None,
    after: Annotated[str | None, Query(max_length=128, description="Only the next turns after this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Json:
    session_id = None if session is None else (await services.store.find_session(caller.principal, session)).id
    where = TurnFilter(agent=agent, status=status, search=search, before=before, after=after)
    async with services.searches.slot(caller.principal) if search else nullcontext():
        turns = await services.store.list_turns(caller.principal, session_id=session_id, limit=limit + 1, where=where)
    page = turns[-limit:] if after is None else turns[:limit]
    return {"turns": [turn_json(turn) for turn in reversed(page)], "more": len(turns) > limit}


@router.get("/{id}", summary="A turn's state so far, and the position to continue from")
async def show(services: ServicesDep, caller: Reading, id: PathId) -> Json:
    return await _snapshot(services, caller.principal, id)


@router.get("/{id}/recording", summary="An ended turn with its journal, as a file for `turnwire replay`")
async def recording(services: ServicesDep, caller: Operating, id: PathId) -> Response:
    # The journal has more than the log shows: replies and results as the agent got them. So the turn must be the
    # caller's own, and the key must have been given the scope `operate` as well.
    record = await services.store.find_turn(caller.principal, id)
    settings = services.settings
    history = await recorded_history(services.store, record, settings.history_turns, settings.history_tokens)
    body = encode_recording(await record_turn(services.store, record, history))
    name = f'attachment; filename="recording-{record.id}.jsonl"'
    return Response(body, 200, {"Content-Disposition": name, "Cache-Control": "no-store"}, "application/jsonl")


@router.get("/{id}/seal", summary="The seal of an ended turn, to check its log with")
async def seal(services: ServicesDep, caller: Reading, id: PathId) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    found = await services.store.seal(record.id)
    if found is None:
        raise SealNotFoundError(record.id)
    return {"version": 1, **msgspec.to_builtins(found), "root": root_of(found)}


@router.post(
    "/{id}/cancel",
    summary="Stop a turn; answers when it has stopped, also if it had before",
    responses={202: {"description": "The turn has not stopped in time; the command stands, and its worker obeys it"}},
)
async def cancel(services: ServicesDep, caller: Writing, id: PathId, response: Response) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    await services.runner.cancel(record.id)
    snapshot = await _snapshot(services, caller.principal, record.id)
    if snapshot["phase"] != "ended":
        response.status_code = 202
    return snapshot


@router.post("/{id}/fork", summary="Start a turn that shares this one's log up to a position", status_code=201)
async def fork(
    services: ServicesDep,
    caller: Writing,
    id: PathId,
    body: ForkBody,
    response: Response,
    idempotency_key: Annotated[str, Header()] = "",
) -> Json:
    source = await services.store.find_turn(caller.principal, id)
    key = check_key(idempotency_key)
    accepted = await services.runner.fork(
        ForkRequest(
            source=source,
            position=body.position,
            message=body.message,
            agent=body.agent,
            model=body.model,
            by=caller.principal,
            idempotency_key=key,
            fingerprint=body.fingerprint(source.id) if key else "",
            on_busy=body.on_busy,
        )
    )
    response.status_code = 201 if accepted.created else 200
    return await _snapshot(services, caller.principal, accepted.record.id)


@router.post("/{id}/approvals/{call_id}", summary="Allow or deny a tool call that a turn waits for")
async def approve(
    services: ServicesDep,
    caller: Approving,
    id: PathId,
    call_id: Annotated[str, Path(max_length=256)],
    body: ApprovalBody,
) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    await services.runner.answer(record.id, body.answer(call_id, caller.principal))
    return await _snapshot(services, caller.principal, record.id)


@router.post("/{id}/replies", summary="Answer a question that a turn waits for")
async def reply(services: ServicesDep, caller: Approving, id: PathId, body: ReplyBody) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    await services.runner.answer(record.id, body.answer(caller.principal))
    return await _snapshot(services, caller.principal, record.id)


@router.post("/{id}/tool-results", summary="Send the result of a tool that the client has run")
async def send_tool_result(services: ServicesDep, caller: Writing, id: PathId, body: ToolResultBody) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    await services.runner.answer(record.id, body.answer())
    return await _snapshot(services, caller.principal, record.id)


async def _snapshot(services: Services, principal: str, turn_id: str) -> Json:
    record = await services.store.find_turn(principal, turn_id)
    state = await turn_state(services.store, record)
    return {**snapshot_json(record, state), "feedback": await turn_feedback(services, record)}


# Feedback: a value and a note, stored beside the log, which stays as it ended


@feedback_router.put("/v1/turns/{id}/feedback", summary="Rate a turn, with a note; a null value withdraws the rating")
async def rate(services: ServicesDep, caller: Writing, id: PathId, body: FeedbackBody) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    if body.value is None:
        await services.store.remove_annotations("feedback", caller.principal, key=record.id)
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


@feedback_router.get(
    "/v1/feedback", name="index", summary="Your feedback, newest turns first; everybody's for the scope `operate`"
)
async def list_feedback(
    services: ServicesDep,
    caller: Reading,
    before: Annotated[str | None, Query(max_length=128, description="The last turn id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Json:
    principal = None if "operate" in caller.scopes else caller.principal
    found = await services.store.list_annotations("feedback", principal, before=before, limit=limit + 1)
    page = found[:limit]
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
        "next": page[-1].key if len(found) > limit else None,
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
