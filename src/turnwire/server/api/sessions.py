"""Sessions: created, listed, renamed, exported, shared, deleted; their files, and turns started in them."""

import hashlib
import secrets
from collections.abc import Collection
from contextlib import nullcontext
from urllib.parse import quote

import msgspec
from pydantic import BaseModel, Field

from turnwire.core.contracts.stores import Annotation
from turnwire.core.errors import SessionFileNotFoundError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import new_blob
from turnwire.core.log.history import transcript
from turnwire.core.log.turns import Session, TurnRecord, TurnState
from turnwire.server.api.turns import session_feedback
from turnwire.server.attachments import Attachment, clean_name
from turnwire.server.errors import HttpError
from turnwire.server.forms import read_file
from turnwire.server.messages import MessageBody, SessionBody, TitleBody, parse_fields
from turnwire.server.request import Request
from turnwire.server.router import Json, Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.turns import check_file_size, snapshot_json, start_turn, turn_json, turn_state

_SESSIONS = RouteGroup("sessions")
_SHARES = RouteGroup("shares")
_KEY = Parameter("Idempotency-Key", "header", "The same key again joins the same turn.")
_DIGEST = Parameter("digest", "path", "The SHA-256 of the file, in hexadecimal.")

SAFE_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")
"""The images that a browser may show in place: none of them can contain a script."""

_MAX_SHARED_TURNS = 1_000
_CITATION_FIELDS = ("index", "title", "url", "heading", "page_number", "supporting_quote", "answer_start", "answer_end")


class SessionsQuery(BaseModel):
    """A page of sessions."""

    search: str | None = Field(None, max_length=200, description="In titles, messages and answers.")
    before: str | None = Field(None, max_length=128, description="The last id of the page before.")
    limit: int = Field(50, ge=1, le=200)


class SessionQuery(BaseModel):
    """How much of a session to show."""

    limit: int = Field(100, ge=1, le=500, description="The most turns, the newest ones.")


@_SESSIONS.route("POST", "/v1/sessions", "Create a session", body=SessionBody, status=201)
async def create(request: Request, services: Services) -> None:
    body = await request.parse_body(SessionBody) if request.has_body else SessionBody()
    session, created = await services.store.ensure_session(request.caller.principal, body.id, body.title)
    await request.respond_json(201 if created else 200, _session_json(session))


@_SESSIONS.route("GET", "/v1/sessions", "List your sessions, newest activity first", query=SessionsQuery)
async def list_sessions(request: Request, services: Services) -> Json:
    query, principal = request.parse_query(SessionsQuery), request.caller.principal
    async with services.searches.slot(principal) if query.search else nullcontext():
        sessions = await services.store.list_sessions(
            principal, search=query.search, before=query.before, limit=query.limit + 1
        )
    page = sessions[: query.limit]
    return {
        "sessions": [_session_json(session) for session in page],
        "next": page[-1].id if len(sessions) > query.limit else None,
    }


@_SESSIONS.route("GET", "/v1/sessions/{id}", "A session and its turns", query=SessionQuery)
async def show_session(request: Request, services: Services) -> Json:
    query, session = request.parse_query(SessionQuery), await _find(request, services)
    turns = await services.store.list_turns(session.principal, session_id=session.id, limit=query.limit)
    feedback = await session_feedback(services, turns)
    return {
        **_session_json(session),
        "shared_at": await sharing_time(services, session),
        "turns": [{**turn_json(turn), "feedback": feedback.get(turn.id)} for turn in turns],
    }


@_SESSIONS.route("PATCH", "/v1/sessions/{id}", "Rename a session", body=TitleBody)
async def rename(request: Request, services: Services) -> Json:
    body = await request.parse_body(TitleBody)
    return _session_json(await services.store.rename_session(request.caller.principal, request.id_param(), body.title))


@_SESSIONS.route("DELETE", "/v1/sessions/{id}", "Delete a session, its turns and their logs", status=204)
async def delete(request: Request, services: Services) -> None:
    session = await _find(request, services)
    await services.runner.cancel_session(session.id)
    await services.store.delete_session(session.principal, session.id)
    await request.respond(204)


@_SESSIONS.route("GET", "/v1/sessions/{id}/export", "The whole conversation")
async def export(request: Request, services: Services) -> Json:
    session = await _find(request, services)
    async with services.searches.slot(session.principal):
        turns = await services.store.list_turns(session.principal, session_id=session.id, limit=100_000)
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


@_SESSIONS.route(
    "POST",
    "/v1/sessions/{id}/turns",
    "Start a turn; follow it with GET /v1/turns/{id}/events",
    parameters=[_KEY],
    body=MessageBody,
    status=202,
    takes_files=True,
)
async def start(request: Request, services: Services) -> None:
    body, session = await request.parse_body(MessageBody), await _find(request, services)
    body = body.model_copy(update={"session_id": session.id})
    accepted = await start_turn(services, session.principal, body, request.idempotency_key)
    location = f"{request.root}/v1/turns/{accepted.record.id}/events"
    answer = {**turn_json(accepted.record), "created": accepted.created}
    await request.respond_json(202, answer, [(b"location", location.encode())])


async def _find(request: Request, services: Services) -> Session:
    return await services.store.find_session(request.caller.principal, request.id_param())


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


@_SESSIONS.route(
    "POST",
    "/v1/sessions/{id}/files",
    "Upload a file for a message of the session, which names it by its digest",
    status=201,
    max_upload_bytes=lambda settings: settings.max_file_bytes,
)
async def upload(request: Request, services: Services) -> Json:
    session, settings = await _find(request, services), services.settings
    file = await read_file(request, settings.max_file_bytes)
    name = clean_name(file.name) or None
    check_file_size(settings, len(file.content), name)
    fields = {"data": file.content, "media_type": file.media_type, "name": name and name[:255]}
    sent = parse_fields(Attachment, fields)
    blob = new_blob(file.content, sent.media_type or file.media_type, sent.name)
    await services.store.put_blob(session.principal, session.id, blob, max_bytes=services.runner.max_session_file_bytes)
    return file_json(blob.info)


@_SESSIONS.route("GET", "/v1/sessions/{id}/files", "The files of a session")
async def list_files(request: Request, services: Services) -> Json:
    session = await _find(request, services)
    return {"files": [file_json(file) for file in await services.store.list_blobs(session.id)]}


@_SESSIONS.route(
    "GET",
    "/v1/sessions/{id}/files/{digest}",
    "A file of a session",
    parameters=[_DIGEST],
    responses={"200": response("The file, with its own media type if a browser may show it")},
)
async def show_file(request: Request, services: Services) -> None:
    session, digest = await _find(request, services), request.id_param("digest")
    blob = await services.store.read_blob(session.id, digest)
    if blob is None:
        raise SessionFileNotFoundError(digest)
    is_shown = blob.media_type in SAFE_IMAGES
    media_type = blob.media_type if is_shown else "application/octet-stream"
    disposition = _disposition("inline" if is_shown else "attachment", blob.name)
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(blob.body)).encode()),
        (b"content-disposition", disposition.encode()),
        # The file is the user's, or another person's that the user was sent: it must not run in this origin.
        (b"content-security-policy", b"default-src 'none'; sandbox"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"private, max-age=86400, immutable"),
    ]
    await request.respond(200, blob.body, headers)


def file_json(file: AttachedFile) -> Json:
    return {"name": None, **msgspec.to_builtins(file)}


def _disposition(kind: str, name: str | None) -> str:
    return f"{kind}; filename*=UTF-8''{quote(name, safe='')}" if name else kind


# Links by which anybody can read a session, without an account and without its private parts


@_SHARES.route("POST", "/v1/sessions/{id}/share", "Make a link by which anybody can read the session", status=201)
async def share(request: Request, services: Services) -> Json:
    session, token = await _find(request, services), secrets.token_urlsafe(32)
    link = Annotation(kind="share", key=_digest(token), principal=session.principal, at=now_ms(), session_id=session.id)
    await services.store.annotate(link)
    return {"url": f"{request.base_url}/share/{token}", "token": token, "shared_at": time_text(link.at)}


@_SHARES.route("DELETE", "/v1/sessions/{id}/share", "Revoke all links to the session", status=204)
async def revoke(request: Request, services: Services) -> None:
    session = await _find(request, services)
    await services.store.remove_annotations("share", session.principal, session_id=session.id)
    await request.respond(204)


@_SHARES.route(
    "GET", "/v1/shared/{token}", "A shared session, for anybody who has its link; needs no key", access="public"
)
async def show_shared(request: Request, services: Services) -> None:
    link = await services.store.find_annotation("share", _digest(request.params["token"]))
    if link is None or link.session_id is None:
        raise HttpError(404, "share_not_found", "this link was revoked, or never existed; ask its sender for a new one")
    session = await services.store.find_session(link.principal, link.session_id)
    turns = await services.store.list_turns(link.principal, session_id=session.id, limit=_MAX_SHARED_TURNS)
    # The owner has agreed to share what was there, so later turns stay private.
    shared = [turn for turn in turns if turn.created_at <= link.at and turn.outcome != "joined"]
    private = {turn.id for turn in turns if turn.created_at > link.at}
    answer = {
        "title": session.title,
        "shared_at": time_text(link.at),
        "turns": [_shared_turn_json(turn, await turn_state(services.store, turn), private) for turn in shared],
    }
    await request.respond_json(200, answer, [(b"x-robots-tag", b"noindex")])


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


def routes() -> list[Route]:
    return [*_SESSIONS.routes, *_SHARES.routes]
