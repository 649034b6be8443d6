"""Files as clients send them: in base64, as a data URL, by a web address, or by the digest of an earlier upload."""

import base64
import binascii
import mimetypes
from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, cast
from urllib.parse import unquote_to_bytes, urlsplit

from msgspec.structs import replace
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic import WithJsonSchema as JsonSchema
from pydantic_core import PydanticCustomError

from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import Blob, new_blob

MAX_ATTACHMENTS = 20
MAX_NAME_LENGTH = 255
_MEDIA_TYPE = r"^[A-Za-z0-9!#$&^_.+*-]{1,127}/[A-Za-z0-9!#$&^_.+*-]{1,127}$"
_DIGEST = r"^[0-9a-f]{64}$"
_UNKNOWN_TYPE = "application/octet-stream"
_TYPES = mimetypes.MimeTypes()  # Made here, since it reads the system's files.


def _decode(data: Any) -> Any:
    if not isinstance(data, str):
        return data
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("this is not base64") from None
    if not content:
        raise ValueError("the file is empty")
    return content


FileData = Annotated[
    bytes | None, BeforeValidator(_decode), JsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})
]


class Attachment(BaseModel):
    """A file: `data` has the file itself; the address `url` is only passed on."""

    model_config = ConfigDict(extra="forbid")

    digest: Annotated[str, StringConstraints(pattern=_DIGEST)] | None = Field(
        None, description="The SHA-256 of a file that the session has already, instead of `data`."
    )
    media_type: Annotated[str, StringConstraints(pattern=_MEDIA_TYPE, to_lower=True)] | None = Field(
        None, validate_default=True, description="Such as `image/png`; needed unless there is a `digest`."
    )
    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_LENGTH)] | None = None
    data: FileData = Field(None, description="The file, in base64 or as a data URL.")
    url: Annotated[str, StringConstraints(max_length=2_048)] | None = Field(
        None, description="The address of the file. Turnwire does not fetch it."
    )

    @model_validator(mode="before")
    @classmethod
    def _split_data_url(cls, fields: Any) -> Any:
        """Replace a data URL by what it contains."""
        if not isinstance(fields, Mapping):
            return fields
        values = dict(cast("Mapping[str, Any]", fields))
        if isinstance(data := values.get("data"), str) and data.startswith("data:"):
            media_type, values["data"] = _read_data_url(data)
            values["media_type"] = values.get("media_type") or media_type
        return values

    @field_validator("media_type")
    @classmethod
    def _has_media_type(cls, media_type: str | None, info: ValidationInfo) -> str | None:
        if media_type is None and info.data.get("digest") is None:
            raise PydanticCustomError("missing", "Field required")
        return media_type

    @field_validator("name")
    @classmethod
    def _clean_name(cls, name: str | None) -> str | None:
        return None if name is None else clean_name(name) or None

    @field_validator("url")
    @classmethod
    def _is_web_address(cls, url: str | None) -> str | None:
        if url is not None and not _is_remote(url):
            raise ValueError("this is not an http or https address; send the file itself as `data`")
        return url

    @model_validator(mode="after")
    def _is_one_file(self) -> "Attachment":
        if sum(value is not None for value in (self.data, self.url, self.digest)) != 1:
            raise ValueError("give exactly one of `data`, `url` and `digest`")
        return self

    @cached_property
    def blob(self) -> Blob | None:
        """Return the file, if it was sent."""
        return None if self.data is None else new_blob(self.data, self.media_type or _UNKNOWN_TYPE, self.name)

    def described(self, stored: AttachedFile | None = None) -> AttachedFile:
        """Return the description of the file; `stored` is that of an earlier upload."""
        if stored is not None:
            return replace(stored, media_type=self.media_type or stored.media_type, name=self.name or stored.name)
        if (blob := self.blob) is not None:
            return blob.info
        return AttachedFile(
            media_type=self.media_type or _UNKNOWN_TYPE, name=self.name, digest=self.digest, url=self.url
        )


def clean_name(path: str) -> str:
    """Return the last part of a client's file name, which is shown and never used as a path. It may be empty."""
    name = clean_text(PurePosixPath(PureWindowsPath(path).name).name)
    name = "".join(letter for letter in name if letter.isprintable()).strip()
    return "" if name in (".", "..") else name


def file_fields(
    url: str, *, media_type: str | None = None, name: str | None = None, kind: str = "application"
) -> dict[str, Any]:
    """Return the fields of an attachment from a URL of a protocol's file part, which may be a data URL.

    `kind` is the first half of the media type of a remote file whose type is not known.
    """
    fields: dict[str, Any] = {"name": name[:MAX_NAME_LENGTH] if name else None}
    if url.startswith("data:"):
        return {**fields, "data": url, "media_type": media_type}
    guessed = media_type or (guess_type(urlsplit(url).path) if _is_remote(url) else None)
    fallback = "image/*" if kind == "image" else _UNKNOWN_TYPE
    return {**fields, "url": url, "media_type": guessed or fallback}


def guess_type(name: str) -> str | None:
    """Return the media type for the ending of a file's name; None if it is unknown."""
    return _TYPES.guess_type(name)[0]


def _read_data_url(url: str) -> tuple[str, Any]:
    """Return the media type of a data URL, and its base64 or its bytes."""
    header, _, data = url.removeprefix("data:").partition(",")
    media_type, *parameters = (part.strip() for part in header.split(";"))
    if "base64" in parameters:
        return media_type or "text/plain", data
    return media_type or "text/plain", unquote_to_bytes(data) or data


def _is_remote(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
