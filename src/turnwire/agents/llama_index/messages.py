"""Conversations in the SDK's form, and messages that enter a run."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, DocumentBlock, ImageBlock, TextBlock, ToolCallBlock

from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message


def sdk_messages(history: Sequence[Message], files: LoadedFiles) -> list[ChatMessage]:
    """Convert a conversation to the SDK's messages."""
    return [sdk_message(message, files) for message in history]


def sdk_message(message: Message, files: LoadedFiles) -> ChatMessage:
    match message.role:
        case "tool":
            return ChatMessage(
                role="tool", content=message.content, additional_kwargs={"tool_call_id": message.call_id or ""}
            )
        case "assistant":
            calls = [
                ToolCallBlock(tool_call_id=call.call_id, tool_name=call.tool, tool_kwargs=call.args)
                for call in message.tool_calls
            ]
            text = [TextBlock(text=message.content)] if message.content or not calls else []
            return ChatMessage(role="assistant", blocks=[*text, *calls])
        case "user":
            return ChatMessage(role="user", blocks=[_block(part) for part in files.parts(message)])


def _block(part: str | LoadedFile) -> TextBlock | ImageBlock | DocumentBlock:
    if isinstance(part, str):
        return TextBlock(text=part)
    if part.info.url is not None:
        return ImageBlock(url=part.info.url, image_mimetype=part.info.media_type)
    if part.is_image:
        return ImageBlock(image=part.data, image_mimetype=part.info.media_type)
    return DocumentBlock(data=part.data, title=part.name, document_mimetype=part.info.media_type)


async def add_inputs(
    agent: Any, ctx: Any, messages: list[ChatMessage], memory: Any, inputs: Sequence[str]
) -> list[ChatMessage]:
    """Return the input of an agent's next model call, with the turn's new messages.

    The messages are stored where the agent keeps its own work, so that later calls have them at the same position.
    """
    sent = [ChatMessage(role="user", content=text) for text in inputs]
    if sent and isinstance(agent, FunctionAgent):
        work: list[ChatMessage] = await ctx.store.get(agent.scratchpad_key, default=[])
        await ctx.store.set(agent.scratchpad_key, [*work, *sent])
        return messages
    for message in sent:
        await memory.aput(message)
    return [*messages, *sent]
