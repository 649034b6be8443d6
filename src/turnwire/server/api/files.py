"""Files of sessions: uploaded before the message that names them, described, and read back by their owner."""

from typing import Annotated
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Path, Response, UploadFile

from turnwire.core.errors import SessionFileNotFoundError
from turnwire.core.events import AttachedFile
from turnwire.core.files import new_blob
from turnwire.server.api.dependencies import Json, PathId, Reading, ServicesDep, Writing
from turnwire.server.attachments import Attachment, clean_name
from turnwire.server.errors import HttpError
from turnwire.server.messages import parse_fields
from turnwire.server.turns import check_file_size

router = APIRouter(prefix="/v1/sessions/{id}/files", tags=["sessions"])

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The SHA-256 of the file, in hexadecimal.")]

SAFE_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")
"""The images that a browser may show in place: none of them can contain a script."""


@router.post("", status_code=201, summary="Upload a file for a message of the session, which names it by its digest")
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


@router.get("", summary="The files of a session")
async def list_files(services: ServicesDep, caller: Reading, id: PathId) -> Json:
    session = await services.store.find_session(caller.principal, id)
    return {"files": [file_json(file) for file in await services.store.list_blobs(session.id)]}


@router.get("/{digest}", summary="A file of a session", response_class=Response)
async def show(services: ServicesDep, caller: Reading, id: PathId, digest: Digest) -> Response:
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
