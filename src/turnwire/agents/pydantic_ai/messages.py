"""Conversations in the SDK's form."""

from collections.abc import Sequence

from pydantic_ai import messages as sdk

from turnwire.core.turns import Message


def sdk_messages(history: Sequence[Message]) -> list[sdk.ModelMessage]:
    """Convert a conversation to the SDK's messages."""
    tools = {call.call_id: call.tool for message in history for call in message.tool_calls}
    return [_sdk_message(message, tools) for message in history]


def _sdk_message(message: Message, tools: dict[str, str]) -> sdk.ModelMessage:
    call_id = message.call_id or ""
    match message.role:
        case "user":
            return sdk.ModelRequest([sdk.UserPromptPart(message.content)])
        case "tool":
            return sdk.ModelRequest([sdk.ToolReturnPart(tools.get(call_id, "unknown"), message.content, call_id)])
        case "assistant":
            calls = [sdk.ToolCallPart(call.tool, call.args, call.call_id) for call in message.tool_calls]
            text = [sdk.TextPart(message.content)] if message.content or not calls else []
            return sdk.ModelResponse([*text, *calls])
