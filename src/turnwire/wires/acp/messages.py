"""The requests of ACP that an agent answers."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from turnwire.wires.frames import omit_none

PROTOCOL_VERSION = 1
_FILE = "application/octet-stream"


class AcpModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class ElicitationCapabilities(AcpModel):
    form: dict[str, Any] | None = None


class ClientCapabilities(AcpModel):
    elicitation: ElicitationCapabilities | None = None


class InitializeParams(AcpModel):
    protocol_version: int
    client_capabilities: ClientCapabilities | None = None

    @property
    def takes_forms(self) -> bool:
        """Return True if the editor can show the form of an elicitation."""
        elicitation = self.client_capabilities and self.client_capabilities.elicitation
        return elicitation is not None and elicitation.form is not None


class NewSessionParams(AcpModel):
    cwd: str = ""


class SessionParams(AcpModel):
    session_id: str = Field(min_length=1, max_length=128)


class ModeParams(SessionParams):
    mode_id: str


class ListSessionsParams(AcpModel):
    cwd: str | None = None
    cursor: str | None = None


class Resource(AcpModel):
    uri: str = ""
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ContentBlock(AcpModel):
    """A piece of a prompt: text, a link, an embedded resource, an image or audio."""

    type: str
    text: str = ""
    data: str | None = None
    mime_type: str | None = None
    uri: str | None = None
    name: str | None = None
    resource: Resource | None = None


class PromptParams(SessionParams):
    prompt: list[ContentBlock] = Field(min_length=1)

    @property
    def message(self) -> str:
        """Return the text for the agent: text as it is, links as Markdown, embedded texts in fences."""
        return "\n\n".join(filter(None, map(_text, self.prompt)))

    @property
    def attachments(self) -> list[dict[str, Any]]:
        return [attachment for block in self.prompt if (attachment := _attachment(block)) is not None]


def _text(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[{block.name or block.uri}]({block.uri})"
        case "resource" if block.resource is not None and block.resource.text is not None:
            fence = "```"
            while fence in block.resource.text:
                fence += "`"
            return f"{block.resource.uri}\n{fence}\n{block.resource.text}\n{fence}"
        case _:
            return ""


def _attachment(block: ContentBlock) -> dict[str, Any] | None:
    if block.type in ("image", "audio") and block.data:
        return {"media_type": block.mime_type or _FILE, "data": block.data}
    if block.type == "resource" and block.resource is not None and block.resource.blob:
        name = block.resource.uri.rpartition("/")[2] or None
        return omit_none(media_type=block.resource.mime_type or _FILE, data=block.resource.blob, name=name)
    return None
