"""Conversations in the SDK's form."""

from collections.abc import Sequence

from pydantic_ai import messages as sdk

from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message


def sdk_messages(history: Sequence[Message], files: LoadedFiles) -> list[sdk.ModelMessage]:
    """Convert a conversation to the SDK's messages."""
    tools = {call.call_id: call.tool for message in history for call in message.tool_calls}
    return [_sdk_message(message, tools, files) for message in history]


def prompt_of(message: Message, files: LoadedFiles) -> str | list[sdk.UserContent]:
    """Return a message of the user in the SDK's form."""
    if not message.attachments:
        return message.content
    return [part if isinstance(part, str) else _content(part) for part in files.parts(message)]


def _content(file: LoadedFile) -> sdk.UserContent:
    if file.info.url is not None:
        return sdk.ImageUrl(file.info.url)
    return sdk.BinaryContent(file.data, media_type=file.info.media_type)


def _sdk_message(message: Message, tools: dict[str, str], files: LoadedFiles) -> sdk.ModelMessage:
    call_id = message.call_id or ""
    match message.role:
        case "user":
            return sdk.ModelRequest([sdk.UserPromptPart(prompt_of(message, files))])
        case "tool":
            return sdk.ModelRequest([sdk.ToolReturnPart(tools.get(call_id, "unknown"), message.content, call_id)])
        case "assistant":
            calls = [sdk.ToolCallPart(call.tool, call.args, call.call_id) for call in message.tool_calls]
            text = [sdk.TextPart(message.content)] if message.content or not calls else []
            return sdk.ModelResponse([*text, *calls])
