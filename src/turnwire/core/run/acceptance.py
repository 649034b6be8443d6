"""The demands of a message on its agent: files, options for the model, and tools that its client runs.

They are checked when the message is accepted, and again when its turn runs: since a restart, the name may stand for
another agent.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from turnwire.core.contracts.agents import attachment_types, takes_client_tools, tool_names
from turnwire.core.errors import AttachmentsNotTakenError, ClientToolConflictError, ClientToolsNotTakenError
from turnwire.core.journal.waits import ClientTool, client_tools
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import accepts, attached_files
from turnwire.core.log.model_options import ModelOptions, check_model_options, model_options


class MessageDemands(Struct, frozen=True):
    """The options of a turn that make demands on its agent, read once; the client's tools by name."""

    attachments: tuple[AttachedFile, ...]
    model: ModelOptions
    client_tools: Mapping[str, ClientTool]


def read_demands(options: Mapping[str, Any]) -> MessageDemands:
    tools = {tool.name: tool for tool in client_tools(options)}
    return MessageDemands(attached_files(options), model_options(options), tools)


def check_message(name: str, agent: object, options: MessageDemands) -> None:
    """Raise an error if a message with these options asks for something that the agent does not take.

    AttachmentsNotTakenError, ModelOptionNotTakenError, ClientToolsNotTakenError, ClientToolConflictError.
    """
    _check_attachments(name, agent, options.attachments)
    check_model_options(name, agent, options.model)
    if options.client_tools and not takes_client_tools(agent):
        raise ClientToolsNotTakenError(name)
    for tool in options.client_tools:
        if tool in tool_names(agent):
            raise ClientToolConflictError(name, tool)


def _check_attachments(name: str, agent: object, files: tuple[AttachedFile, ...]) -> None:
    accepted = attachment_types(agent)
    for file in files:
        if not accepts(accepted, file.media_type):
            raise AttachmentsNotTakenError(name, file.media_type, accepted)
        # Models fetch images themselves; nobody fetches other files.
        if file.url is not None and "*/*" not in accepted and not accepts(("image/*",), file.media_type):
            raise AttachmentsNotTakenError(name, f"a {file.media_type} file by its URL", accepted)
