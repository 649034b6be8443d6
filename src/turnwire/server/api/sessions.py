"""Sessions: created, listed, searched, renamed, exported, deleted; and turns started in them."""

from contextlib import nullcontext
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from turnwire.core.codec import time_text
from turnwire.core.history import transcript
from turnwire.core.turns import Session
from turnwire.server.api.dependencies import Json, PathId, Reading, ServicesDep, Writing
from turnwire.server.api.feedback import session_feedback
from turnwire.server.api.shares import sharing_time
from turnwire.server.messages import MessageBody, SessionBody, TitleBody
from turnwire.server.turns import snapshot_json, start_turn, turn_json, turn_state

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.post("", summary="Create a session")
async def create(services: ServicesDep, caller: Writing, body: SessionBody | None = None) -> Response:
    body = body or SessionBody()
    session, created = await services.store.ensure_session(caller.principal, body.id, body.title)
    return JSONResponse(_session_json(session), 201 if created else 200)


@router.get("", summary="List your sessions, newest activity first")
async def index(
    services: ServicesDep,
    caller: Reading,
    search: Annotated[str | None, Query(max_length=200, description="In titles, messages and answers.")] = None,
    before: Annotated[str | None, Query(max_length=128, description="The last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Json:
    async with services.searches.slot(caller.principal) if search else nullcontext():
        sessions = await services.store.list_sessions(caller.principal, search=search, before=before, limit=limit + 1)
    page = sessions[:limit]
    return {
        "sessions": [_session_json(session) for session in page],
        "next": page[-1].id if len(sessions) > limit else None,
    }


@router.get("/{id}", summary="A session and its turns")
async def show(
    services: ServicesDep, caller: Reading, id: PathId, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> Json:
    session = await services.store.find_session(caller.principal, id)
    turns = await services.store.list_turns(caller.principal, session_id=session.id, limit=limit)
    feedback = await session_feedback(services, turns)
    return {
        **_session_json(session),
        "shared_at": await sharing_time(services, session),
        "turns": [{**turn_json(turn), "feedback": feedback.get(turn.id)} for turn in turns],
    }


@router.patch("/{id}", summary="Rename a session")
async def rename(services: ServicesDep, caller: Writing, id: PathId, body: TitleBody) -> Json:
    return _session_json(await services.store.rename_session(caller.principal, id, body.title))


@router.delete("/{id}", status_code=204, summary="Delete a session, its turns and their logs")
async def delete(services: ServicesDep, caller: Writing, id: PathId) -> None:
    session = await services.store.find_session(caller.principal, id)
    await services.runner.cancel_session(session.id)
    await services.store.delete_session(caller.principal, session.id)


@router.get("/{id}/export", summary="The whole conversation")
async def export(services: ServicesDep, caller: Reading, id: PathId) -> Json:
    session = await services.store.find_session(caller.principal, id)
    async with services.searches.slot(caller.principal):
        turns = await services.store.list_turns(caller.principal, session_id=session.id, limit=100_000)
        states = [await turn_state(services.store, turn) for turn in turns]
    feedback = await session_feedback(services, turns)
    return {
        **_session_json(session),
        "shared_at": await sharing_time(services, session),
        "turns": [
            {**snapshot_json(turn, state), "feedback": feedback.get(turn.id)}
            for turn, state in zip(turns, states, strict=True)
        ],
        "transcript": msgspec.to_builtins(transcript(states)),
    }


@router.post("/{id}/turns", status_code=202, summary="Start a turn; follow it with GET /v1/turns/{id}/events")
async def start(
    services: ServicesDep,
    caller: Writing,
    id: PathId,
    body: MessageBody,
    request: Request,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> Json:
    session = await services.store.find_session(caller.principal, id)
    body = body.model_copy(update={"session_id": session.id})
    key = (idempotency_key or "").strip() or None
    accepted = await start_turn(services, caller.principal, body, key)
    response.headers["Location"] = f"{request.scope.get('root_path', '')}/v1/turns/{accepted.record.id}/events"
    return {**turn_json(accepted.record), "created": accepted.created}


def _session_json(session: Session) -> Json:
    return {
        "id": session.id,
        "external_id": session.external_id,
        "title": session.title,
        "turn_count": session.turn_count,
        "created_at": time_text(session.created_at),
        "updated_at": time_text(session.updated_at),
    }
