"""Shared sessions: links by which anybody can read a session, without an account and without its private parts."""

import hashlib
import secrets
from collections.abc import Collection

from fastapi import APIRouter, Request, Response

from turnwire.core.codec import now_ms, time_text
from turnwire.core.contracts import Annotation
from turnwire.core.turns import Session, TurnRecord, TurnState
from turnwire.server.api.dependencies import Json, PathId, ServicesDep, Writing
from turnwire.server.errors import HttpError
from turnwire.server.services import Services
from turnwire.server.turns import turn_state

router = APIRouter(tags=["shares"])

SHARED = "/v1/shared/"
_MAX_TURNS = 1_000
_CITATION_FIELDS = ("index", "title", "url", "heading", "page_number", "supporting_quote", "answer_start", "answer_end")


@router.post("/v1/sessions/{id}/share", status_code=201, summary="Make a link by which anybody can read the session")
async def share(services: ServicesDep, caller: Writing, id: PathId, request: Request) -> Json:
    session = await services.store.find_session(caller.principal, id)
    token = secrets.token_urlsafe(32)
    link = Annotation(kind="share", key=_digest(token), principal=caller.principal, at=now_ms(), session_id=session.id)
    await services.store.annotate(link)
    root = f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"
    return {"url": f"{root}/share/{token}", "token": token, "shared_at": time_text(link.at)}


@router.delete("/v1/sessions/{id}/share", status_code=204, summary="Revoke all links to the session")
async def revoke(services: ServicesDep, caller: Writing, id: PathId) -> None:
    session = await services.store.find_session(caller.principal, id)
    await services.store.remove_annotations("share", caller.principal, session_id=session.id)


@router.get(SHARED + "{token}", summary="A shared session, for anybody who has its link; needs no key")
async def show(services: ServicesDep, token: str, response: Response) -> Json:
    link = await services.store.find_annotation("share", _digest(token))
    if link is None or link.session_id is None:
        raise HttpError(404, "share_not_found", "this link was revoked, or never existed; ask its sender for a new one")
    session = await services.store.find_session(link.principal, link.session_id)
    turns = await services.store.list_turns(link.principal, session_id=session.id, limit=_MAX_TURNS)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Robots-Tag"] = "noindex"
    # The owner has agreed to share what was there, so later turns stay private.
    shared = [turn for turn in turns if turn.created_at <= link.at and turn.outcome != "joined"]
    private = {turn.id for turn in turns if turn.created_at > link.at}
    return {
        "title": session.title,
        "shared_at": time_text(link.at),
        "turns": [_turn_json(turn, await turn_state(services.store, turn), private) for turn in shared],
    }


async def sharing_time(services: Services, session: Session) -> str | None:
    """Return when the newest link to the session was made; None if it has none."""
    links = await services.store.list_annotations("share", session.principal, session_id=session.id)
    return time_text(max(link.at for link in links)) if links else None


def _turn_json(record: TurnRecord, state: TurnState, private: Collection[str]) -> Json:
    """Return a turn without the parts that are not for everybody.

    These are ids, names of people, arguments, results and progress of tools, files, errors, token counts and timings.
    """
    return {
        "agent": record.agent,
        "message": record.message,
        "phase": record.phase,
        "outcome": record.outcome,
        "created_at": time_text(record.created_at),
        "content": state.text,
        "inputs": [
            {"content": each.content, "answer_offset": each.answer_offset}
            for each in state.inputs
            if each.turn_id not in private
        ],
        "mode": state.mode,
        "model": state.model,
        "citations": [
            {name: value for name in _CITATION_FIELDS if (value := getattr(citation, name)) is not None}
            for citation in state.citations
        ],
        "steps": [{"kind": step.kind, "name": step.name, "state": step.state} for step in state.steps],
    }


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
