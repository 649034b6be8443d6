"""Files that come with a message, and the fields that look as if they brought some."""

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

MOST_ATTACHMENTS = 20
_MEDIA_TYPE = r"^[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}$"


class Attachment(BaseModel):
    """A file: its bytes in base64 as `data`, or the `url` they are at."""

    model_config = ConfigDict(extra="forbid")

    media_type: Annotated[str, StringConstraints(pattern=_MEDIA_TYPE)] = Field(description="Such as `image/png`.")
    name: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    data: str | None = Field(None, description="The file, in base64.")
    url: Annotated[str, StringConstraints(max_length=2_048)] | None = Field(
        None, description="Where the file is. Turnwire does not fetch it."
    )

    @field_validator("data")
    @classmethod
    def _is_base64(cls, data: str | None) -> str | None:
        try:
            decoded = base64.b64decode(data or "", validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("this is not base64") from None
        if data is not None and not decoded:
            raise ValueError("there is nothing in it")
        return data

    @field_validator("url")
    @classmethod
    def _is_web_address(cls, url: str | None) -> str | None:
        try:
            usable = url is None or (urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname))
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("this is not an http or https address; send the file itself as `data`")
        return url

    @model_validator(mode="after")
    def _is_one_file(self) -> "Attachment":
        if (self.data is None) == (self.url is None):
            raise ValueError("give either `data` or `url`")
        return self


def _refuse(value: Any) -> None:
    if value:  # Some clients always send an empty list; there is nothing in it to be lost.
        raise ValueError("this field is not known here, and what is in it would be lost; send files as `attachments`")


Misnamed = SkipJsonSchema[Annotated[Any, AfterValidator(_refuse)]]
"""A field that other servers take files in. Unknown fields are ignored; these must not be, silently."""


def check_is_text(message: Any) -> Any:
    """Content parts, as other servers take them, in place of the text."""
    if isinstance(message, list):
        raise ValueError("a list of content parts is not taken; send the text as a string, and files as `attachments`")
    return message
