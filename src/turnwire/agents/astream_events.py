"""An adapter for objects that only offer LangChain's `astream_events`, such as clients of remote runnables.

Runnables and graphs of LangChain itself have an adapter of their own, `turnwire.agents.langgraph`, which also knows
approvals, sub-agents and checkpoints. This one needs no SDK: it reads the events as plain values.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from turnwire.core.events import Event, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.core.turns import Turn

StreamEvents = Callable[..., AsyncGenerator[Mapping[str, Any]]]


class StreamEventsAgent:
    """Wrapper of an object with `astream_events(input, version=...)`; the input has the conversation's messages."""

    def __init__(self, target: Any) -> None:
        self._stream: StreamEvents = target.astream_events

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        messages = [
            {"role": message.role, "content": message.content}
            for message in turn.history
            if message.role in ("user", "assistant") and message.content
        ]
        messages.append({"role": "user", "content": turn.message})
        async with aclosing(self._stream({"messages": messages}, version="v2")) as events:
            async for event in events:
                for piece in _read(event):
                    yield piece


def _read(event: Mapping[str, Any]) -> list[Event | str]:
    data: dict[str, Any] = event.get("data") or {}
    call_id, name = str(event.get("run_id", "")), str(event.get("name", ""))
    match event.get("event"):
        case "on_chat_model_stream" | "on_llm_stream":
            text = _text(data.get("chunk"))
            return [text] if text else []
        case "on_chat_model_end":
            usage: dict[str, Any] = getattr(data.get("output"), "usage_metadata", None) or {}
            return [UsageEvent(name, usage.get("input_tokens"), usage.get("output_tokens"))] if usage else []
        case "on_tool_start":
            args: Any = data.get("input")
            return [
                ToolCallEvent(call_id, name, cast("dict[str, Any]", args) if type(args) is dict else {"input": args})
            ]
        case "on_tool_end":
            return [ToolResultEvent(call_id, name, True, _content(data.get("output")))]
        case "on_tool_error":
            return [ToolResultEvent(call_id, name, False, str(data.get("error", "")))]
        case _:
            return []


def _text(chunk: Any) -> str:
    """Return the text of a message chunk, whose content may be a list of blocks."""
    content = _content(chunk)
    if isinstance(content, list):
        blocks = cast("list[str | dict[str, Any]]", content)
        return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)
    return content if isinstance(content, str) else ""


def _content(message: Any) -> Any:
    """Return the content of a message, or the value itself if it is none."""
    return getattr(message, "content", message)
