"""Files that a client uploads as a form, `multipart/form-data`."""

from msgspec import Struct
from python_multipart import create_form_parser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File

from turnwire.server.errors import HttpError
from turnwire.server.request import Request, body_pieces

FORM_BYTES = 64 * 1024
"""The bytes that a form adds to its file."""
_MAX_FIELDS = 16


class UploadedFile(Struct, frozen=True):
    """A file, with the name and the media type that the client gave it."""

    content: bytes
    name: str
    media_type: str


async def read_file(request: Request, limit: int) -> UploadedFile:
    """Return the field `file` of a form. Raises HttpError 400, 413 or 422."""
    files: list[File] = []
    # The file stays in memory, where it is needed: `limit` bounds it.
    config = {"MAX_MEMORY_FILE_SIZE": limit + FORM_BYTES, "MAX_FIELDS": _MAX_FIELDS}
    try:
        parser = create_form_parser({"Content-Type": request.headers[b"content-type"]}, None, files.append, config)
        async for piece in body_pieces(request.receive):
            parser.write(piece)
        parser.finalize()
    except (FormParserError, KeyError, ValueError):
        raise HttpError(422, "invalid_request", "the body is not a form that can be read") from None
    file = next((file for file in files if file.field_name == b"file"), None)
    if file is None:
        raise HttpError(422, "invalid_request", "file: the form has no file of this name")
    if not file.size:
        raise HttpError(422, "invalid_request", "file: it is empty")
    file.file_object.seek(0)
    media_type = (file.content_type or "application/octet-stream").partition(";")[0].strip()
    return UploadedFile(file.file_object.read(), (file.file_name or b"").decode("utf-8", "replace"), media_type)
