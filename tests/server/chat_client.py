"""A client of `/api/chat` that knows only what the AI SDK's transports do."""

from typing import Any
from uuid import uuid4

import httpx

from tests.serving import Client, Frame, within
from tests.wires.ui_message import UIMessage

URL = "/api/chat"


def asks(text: str, message_id: str | None = None) -> dict[str, Any]:
    """A user's message; its id is random, as the client's are."""
    return {"id": message_id or uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]}


def answers(turn_id: str, text: str = "…") -> dict[str, Any]:
    return {"id": turn_id, "role": "assistant", "parts": [{"type": "step-start"}, {"type": "text", "text": text}]}


def decides(turn_id: str, *calls: tuple[str, Any, bool | None], reason: str | None = None) -> dict[str, Any]:
    """An assistant's message in which a person has decided about these calls: their ids, inputs, and what."""
    parts = [
        {
            "type": "dynamic-tool",
            "toolName": "pay",
            "toolCallId": call_id,
            "state": "approval-responded",
            "input": args,
            "approval": {"id": call_id, "approved": approved, **({"reason": reason} if reason else {})},
        }
        for call_id, args, approved in calls
    ]
    return {"id": turn_id, "role": "assistant", "parts": [{"type": "step-start"}, *parts]}


def body(*messages: dict[str, Any], chat: str | None = "c", **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": list(messages), "trigger": "submit-message", **more}
    return body if chat is None else {"id": chat, **body}


def posting(client: Client, *messages: dict[str, Any], query: str = "", headers: Any = None, **more: Any) -> Any:
    """Opens POST /api/chat."""
    return client.stream("POST", URL + query, json=body(*messages, **more), headers=headers)


async def post(client: Client, *messages: dict[str, Any], query: str = "", headers: Any = None, **more: Any) -> Any:
    """Return the whole answer as an `httpx.Response`."""
    return await within(client.http.post(URL + query, json=body(*messages, **more), headers=headers))


def read(answer: httpx.Response, version: int = 6) -> UIMessage:
    assert answer.status_code == 200, answer.text
    return UIMessage(version).read(answer.content)


def chunks(raw: bytes) -> list[bytes]:
    """Return the frames that a client counts."""
    return [block for block in raw.split(b"\n\n") if block.startswith(b"data: {")]


def kinds(frames: list[Frame]) -> list[str]:
    return ["[DONE]" if frame.data == "[DONE]" else frame.type for frame in frames]
