"""Conversations as Claude Code keeps them: messages of Anthropic's Messages API in a transcript of JSON lines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message

Block = dict[str, Any]


def api_messages(history: Iterable[Message], files: LoadedFiles) -> list[dict[str, Any]]:
    """Convert a conversation; the results of parallel calls are one message, as the API demands."""
    messages: list[dict[str, Any]] = []
    for message in history:
        role = "assistant" if message.role == "assistant" else "user"
        if blocks := _blocks(message, files):
            if message.role == "tool" and messages and messages[-1]["content"][0]["type"] == "tool_result":
                messages[-1]["content"] += blocks
            else:
                messages.append({"role": role, "content": blocks})
    return messages


def _blocks(message: Message, files: LoadedFiles) -> list[Block]:
    match message.role:
        case "user":
            return user_blocks(message, files)
        case "tool":
            return [tool_result(message.call_id or "", message.content)]
        case "assistant":
            texts = [text_block(message.content)] if message.content.strip() else []
            return [*texts, *(tool_use(call.call_id, call.tool, call.args) for call in message.tool_calls)]


def user_blocks(message: Message, files: LoadedFiles) -> list[Block]:
    """Return the content of a user's message."""
    return [text_block(part) if isinstance(part, str) else _file(part) for part in files.parts(message)]


def tool_use(call_id: str, tool: str, args: dict[str, Any]) -> Block:
    return {"type": "tool_use", "id": call_id, "name": tool, "input": args}


def tool_result(call_id: str, text: str, *, is_error: bool = False) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text} | ({"is_error": True} if is_error else {})


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _file(file: LoadedFile) -> Block:
    if file.info.url is not None:
        source = {"type": "url", "url": file.info.url}
    else:
        source = {"type": "base64", "media_type": file.info.media_type, "data": file.base64}
    if file.is_image:
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, "title": file.name}


def transcript(
    session: UUID, folder: str, messages: Sequence[dict[str, Any]], deferred: Block | None = None
) -> Iterator[str]:
    """Yield the lines of a transcript; `deferred` is a tool call that Claude Code runs first when it resumes."""
    parent: str | None = None
    entries: list[dict[str, Any]] = [{"type": message["role"], "message": message} for message in messages]
    if deferred is not None:
        names = {"toolUseID": deferred["id"], "toolName": deferred["name"], "toolInput": deferred["input"]}
        note = {"type": "hook_deferred_tool", **names, "hookName": "turnwire", "hookEvent": "PreToolUse"}
        entries.append({"type": "attachment", "attachment": note | {"permissionMode": "default"}})
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for entry in entries:
        own = str(uuid4())
        links = {"parentUuid": parent, "uuid": own, "isSidechain": False, "sessionId": str(session)}
        yield json.dumps({**entry, **links, "timestamp": now, "cwd": folder, "userType": "external"})
        parent = own
