"""Conversations in the SDK's form."""

from collections.abc import Sequence

from agents import TResponseInputItem

from turnwire.core.codec import clean_text
from turnwire.core.turns import Message
from turnwire.models.chat_completions import arguments_json


def sdk_messages(history: Sequence[Message]) -> list[TResponseInputItem]:
    """Convert a conversation to the SDK's input items."""
    return [item for message in history for item in _input_items(message)]


def _input_items(message: Message) -> list[TResponseInputItem]:
    content = clean_text(message.content)
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id or "", "output": content}]
    items: list[TResponseInputItem] = []
    if content or not message.tool_calls:
        items.append({"role": message.role, "content": content})
    for call in message.tool_calls:
        request = {"call_id": call.call_id, "name": call.tool, "arguments": arguments_json(call)}
        items.append({"type": "function_call", **request})  # pyright: ignore[reportArgumentType]
    return items
