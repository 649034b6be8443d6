"""The demands of a message on its agent: files, options for the model, and tools that its client runs.

They are checked when the message is accepted, and again when its turn runs: since a restart, the name may stand for
another agent.
"""

from collections.abc import Mapping
from typing import Any

from turnwire.core.contracts.agents import attachment_types, takes_client_tools, tool_names
from turnwire.core.errors import AttachmentsNotTakenError, ClientToolConflictError, ClientToolsNotTakenError
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.files import accepts, attached_files
from turnwire.core.log.model_options import check_model_options


def check_message(name: str, agent: object, options: Mapping[str, Any]) -> None:
    """Raise an error if a turn with these options asks for something that the agent does not take.

    AttachmentsNotTakenError, ModelOptionNotTakenError, ClientToolsNotTakenError, ClientToolConflictError.
    """
    _check_attachments(name, agent, options)
    check_model_options(name, agent, options)
    tools = client_tools(options)
    if tools and not takes_client_tools(agent):
        raise ClientToolsNotTakenError(name)
    for tool in tools:
        if tool.name in tool_names(agent):
            raise ClientToolConflictError(name, tool.name)


def _check_attachments(name: str, agent: object, options: Mapping[str, Any]) -> None:
    accepted = attachment_types(agent)
    for file in attached_files(options):
        if not accepts(accepted, file.media_type):
            raise AttachmentsNotTakenError(name, file.media_type, accepted)
        # Models fetch images themselves; nobody fetches other files.
        if file.url is not None and "*/*" not in accepted and not accepts(("image/*",), file.media_type):
            raise AttachmentsNotTakenError(name, f"a {file.media_type} file by its URL", accepted)
