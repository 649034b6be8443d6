"""Files that a client uploads as a form, `multipart/form-data`."""

from typing import Any

from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from turnwire.server.errors import HttpError, invalid_fields
from turnwire.server.request import Request, body_pieces

FORM_BYTES = 64 * 1024
"""The bytes that a form adds to its file."""
_MAX_PARTS = 16


class UploadedFile(Struct, frozen=True):
    """A file, with the name and the media type that the client gave it."""

    content: bytes
    name: str
    media_type: str


async def read_file(request: Request, limit: int) -> UploadedFile:
    """Return the field `file` of a form. Raises HttpError 400, 413 or 422."""
    parts: list[Field | File] = []

    def add(part: Field | File) -> None:
        parts.append(part)
        if len(parts) > _MAX_PARTS:
            raise FormParserError("too many parts")

    kind, options = parse_options_header(request.headers.get(b"content-type", b""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise _unreadable()
    # The file stays in memory, where it is needed: `limit` bounds it.
    config: dict[Any, Any] = {"MAX_MEMORY_FILE_SIZE": limit + FORM_BYTES}
    try:
        parser = FormParser("multipart/form-data", add, add, boundary=options[b"boundary"], config=config)
        async for piece in body_pieces(request.receive):
            parser.write(piece)
        parser.finalize()
    except FormParserError:
        raise _unreadable() from None
    file = next((part for part in parts if isinstance(part, File) and part.field_name == b"file"), None)
    if file is None:
        raise invalid_fields([{"loc": ("file",), "msg": "the form has no file of this name"}])
    if not file.size:
        raise invalid_fields([{"loc": ("file",), "msg": "it is empty"}])
    file.file_object.seek(0)
    media_type = (file.content_type or "application/octet-stream").partition(";")[0].strip()
    return UploadedFile(file.file_object.read(), _text(file.file_name or b""), media_type)


def _unreadable() -> HttpError:
    return HttpError(422, "invalid_request", "the body is not a form that can be read")


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")
