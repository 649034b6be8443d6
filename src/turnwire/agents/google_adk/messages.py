"""Conversations in the SDK's form."""

from collections.abc import Sequence
from itertools import groupby

from google.adk.events.event import Event
from google.genai import types

from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message


def sdk_events(history: Sequence[Message], files: LoadedFiles, agent: str, invocation: str = "history") -> list[Event]:
    """Convert a conversation to the events of a session. `agent` is the author where no handoff is known.

    The results of parallel calls are one event, as the SDK writes them.
    """
    tools = {call.call_id: call.tool for message in history for call in message.tool_calls}
    events: list[Event] = []
    author = agent
    for role, group in groupby(history, key=lambda message: message.role):
        for message in group if role != "tool" else ():
            author = message.agent or (agent if role == "user" else author)
            name = "user" if role == "user" else author
            events.append(Event(author=name, content=content_of(message, files), invocation_id=invocation))
        if role == "tool":
            parts = [_result(message, tools) for message in group]
            content = types.Content(role="user", parts=parts)
            events.append(Event(author=author, content=content, invocation_id=invocation))
    return events


def content_of(message: Message, files: LoadedFiles) -> types.Content:
    """Return a message of the user or the model in the SDK's form."""
    if message.role == "user":
        if not message.attachments:
            return types.Content(role="user", parts=[types.Part(text=message.content)])
        parts = [types.Part(text=part) if isinstance(part, str) else _file(part) for part in files.parts(message)]
        return types.Content(role="user", parts=parts)
    text = [types.Part(text=message.content)] if message.content or not message.tool_calls else []
    calls = [
        types.Part(function_call=types.FunctionCall(id=call.call_id, name=call.tool, args=call.args))
        for call in message.tool_calls
    ]
    return types.Content(role="model", parts=[*text, *calls])


def _result(message: Message, tools: dict[str, str]) -> types.Part:
    call_id = message.call_id or ""
    name = tools.get(call_id, "unknown")
    response = types.FunctionResponse(id=call_id, name=name, response={"result": message.content})
    return types.Part(function_response=response)


def _file(file: LoadedFile) -> types.Part:
    if file.info.url is not None:
        return types.Part(file_data=types.FileData(file_uri=file.info.url, mime_type=file.info.media_type))
    return types.Part(inline_data=types.Blob(data=file.data, mime_type=file.info.media_type))
