"""Sessions: created, listed, renamed, exported, shared, deleted; their files, and turns started in them."""

import hashlib
import secrets
from collections.abc import Collection
from contextlib import nullcontext
from typing import Annotated
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request, Response, UploadFile
from fastapi.responses import JSONResponse

from turnwire.core.contracts.stores import Annotation
from turnwire.core.errors import SessionFileNotFoundError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import new_blob
from turnwire.core.log.history import transcript
from turnwire.core.log.turns import Session, TurnRecord, TurnState
from turnwire.server.api.dependencies import Json, PathId, Reading, ServicesDep, Writing
from turnwire.server.api.turns import session_feedback
from turnwire.server.attachments import Attachment, clean_name
from turnwire.server.errors import HttpError
from turnwire.server.messages import MessageBody, SessionBody, TitleBody, check_key, parse_fields
from turnwire.server.services import Services
from turnwire.server.turns import check_file_size, snapshot_json, start_turn, turn_json, turn_state

# A route's `name` is part of its released operation id.
router = APIRouter(prefix="/v1/sessions", tags=["sessions"])
files_router = APIRouter(prefix="/v1/sessions/{id}/files", tags=["sessions"])
shares_router = APIRouter(tags=["shares"])

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The SHA-256 of the file, in hexadecimal.")]

SAFE_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")
"""The images that a browser may show in place: none of them can contain a script."""

SHARED = "/v1/shared/"
_MAX_SHARED_TURNS = 1_000
_CITATION_FIELDS = ("index", "title", "url", "heading", "page_number", "supporting_quote", "answer_start", "answer_end")


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
    accepted = await start_turn(services, caller.principal, body, check_key(idempotency_key or ""))
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


# Files: uploaded before the message that names them, described, and read back by their owner


@files_router.post(
    "", status_code=201, summary="Upload a file for a message of the session, which names it by its digest"
)
async def upload(services: ServicesDep, caller: Writing, id: PathId, file: UploadFile) -> Json:
    session = await services.store.find_session(caller.principal, id)
    name, limit = clean_name(file.filename or "") or None, services.settings.max_file_bytes
    content = await file.read(limit + 1)
    check_file_size(services.settings, len(content), name)
    if not content:
        raise HttpError(422, "invalid_request", "file: it is empty")
    media_type = (file.content_type or "application/octet-stream").partition(";")[0].strip()
    sent = parse_fields(Attachment, {"data": content, "media_type": media_type, "name": name and name[:255]})
    blob = new_blob(content, sent.media_type or media_type, sent.name)
    max_bytes = services.settings.max_session_file_bytes
    await services.store.put_blob(caller.principal, session.id, blob, max_bytes=max_bytes)
    return file_json(blob.info)


@files_router.get("", summary="The files of a session")
async def list_files(services: ServicesDep, caller: Reading, id: PathId) -> Json:
    session = await services.store.find_session(caller.principal, id)
    return {"files": [file_json(file) for file in await services.store.list_blobs(session.id)]}


@files_router.get("/{digest}", name="show", summary="A file of a session", response_class=Response)
async def show_file(services: ServicesDep, caller: Reading, id: PathId, digest: Digest) -> Response:
    session = await services.store.find_session(caller.principal, id)
    blob = await services.store.read_blob(session.id, digest)
    if blob is None:
        raise SessionFileNotFoundError(digest)
    is_shown = blob.media_type in SAFE_IMAGES
    headers = {
        "Content-Disposition": _disposition("inline" if is_shown else "attachment", blob.name),
        # The file is the user's, or another person's that the user was sent: it must not run in this origin.
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, max-age=86400, immutable",
    }
    media_type = blob.media_type if is_shown else "application/octet-stream"
    return Response(blob.body, media_type=media_type, headers=headers)


def file_json(file: AttachedFile) -> Json:
    return {"name": None, **msgspec.to_builtins(file)}


def _disposition(kind: str, name: str | None) -> str:
    return f"{kind}; filename*=UTF-8''{quote(name, safe='')}" if name else kind


# Links by which anybody can read a session, without an account and without its private parts


@shares_router.post(
    "/v1/sessions/{id}/share", status_code=201, summary="Make a link by which anybody can read the session"
)
async def share(services: ServicesDep, caller: Writing, id: PathId, request: Request) -> Json:
    session = await services.store.find_session(caller.principal, id)
    token = secrets.token_urlsafe(32)
    link = Annotation(kind="share", key=_digest(token), principal=caller.principal, at=now_ms(), session_id=session.id)
    await services.store.annotate(link)
    root = f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}"
    return {"url": f"{root}/share/{token}", "token": token, "shared_at": time_text(link.at)}


@shares_router.delete("/v1/sessions/{id}/share", status_code=204, summary="Revoke all links to the session")
async def revoke(services: ServicesDep, caller: Writing, id: PathId) -> None:
    session = await services.store.find_session(caller.principal, id)
    await services.store.remove_annotations("share", caller.principal, session_id=session.id)


@shares_router.get(
    SHARED + "{token}", name="show", summary="A shared session, for anybody who has its link; needs no key"
)
async def show_shared(services: ServicesDep, token: str, response: Response) -> Json:
    link = await services.store.find_annotation("share", _digest(token))
    if link is None or link.session_id is None:
        raise HttpError(404, "share_not_found", "this link was revoked, or never existed; ask its sender for a new one")
    session = await services.store.find_session(link.principal, link.session_id)
    turns = await services.store.list_turns(link.principal, session_id=session.id, limit=_MAX_SHARED_TURNS)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Robots-Tag"] = "noindex"
    # The owner has agreed to share what was there, so later turns stay private.
    shared = [turn for turn in turns if turn.created_at <= link.at and turn.outcome != "joined"]
    private = {turn.id for turn in turns if turn.created_at > link.at}
    return {
        "title": session.title,
        "shared_at": time_text(link.at),
        "turns": [_shared_turn_json(turn, await turn_state(services.store, turn), private) for turn in shared],
    }


async def sharing_time(services: Services, session: Session) -> str | None:
    """Return when the newest link to the session was made; None if it has none."""
    links = await services.store.list_annotations("share", session.principal, session_id=session.id)
    return time_text(max(link.at for link in links)) if links else None


def _shared_turn_json(record: TurnRecord, state: TurnState, private: Collection[str]) -> Json:
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
