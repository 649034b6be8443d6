"""Conversations in the SDK's form."""

from collections.abc import Sequence
from typing import Any

from agno.media import File, Image
from agno.models.message import Message as SdkMessage

from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.models.openai_shared import arguments_json


def sdk_messages(history: Sequence[Message], files: LoadedFiles) -> list[SdkMessage]:
    """Convert a conversation to the SDK's messages."""
    tools = {call.call_id: call.tool for message in history for call in message.tool_calls}
    return [_sdk_message(message, tools, files) for message in history]


def _sdk_message(message: Message, tools: dict[str, str], files: LoadedFiles) -> SdkMessage:
    match message.role:
        case "user":
            return _user_message(message, files)
        case "tool":
            call_id = message.call_id or ""
            name = tools.get(call_id, "unknown")
            return SdkMessage(role="tool", content=message.content, tool_call_id=call_id, tool_name=name)
        case "assistant":
            calls = [_call(call) for call in message.tool_calls]
            return SdkMessage(role="assistant", content=message.content or None, tool_calls=calls or None)


def _call(call: ToolRequest) -> dict[str, Any]:
    function = {"name": call.tool, "arguments": arguments_json(call)}
    return {"id": call.call_id, "type": "function", "function": function}


def _user_message(message: Message, files: LoadedFiles) -> SdkMessage:
    if not message.attachments:
        return SdkMessage(role="user", content=message.content)
    parts = files.parts(message)
    texts = [part for part in parts if isinstance(part, str)]
    loaded = [part for part in parts if isinstance(part, LoadedFile)]
    if not loaded:
        return SdkMessage(role="user", content=[{"type": "text", "text": text} for text in texts])
    media: dict[str, Any] = {
        "images": [_image(file) for file in loaded if file.is_image] or None,
        "files": [_file(file) for file in loaded if not file.is_image] or None,
    }
    return SdkMessage(role="user", content="\n\n".join(texts), **media)


def _image(file: LoadedFile) -> Image:
    if file.info.url is not None:
        return Image(url=file.info.url)
    return Image(content=file.data, mime_type=file.info.media_type)


def _file(file: LoadedFile) -> File:
    if file.info.url is not None:
        return File(url=file.info.url)
    return File(content=file.data, mime_type=file.info.media_type, filename=file.name)
