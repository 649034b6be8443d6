"""Conversations in the SDK's form, and messages that enter a run."""

from collections.abc import Sequence
from typing import Any, cast

from agents import TResponseInputItem

from turnwire.agents.openai_agents.events import Run
from turnwire.core.log.codec import clean_text
from turnwire.core.log.files import LoadedFiles
from turnwire.core.log.turns import Message
from turnwire.models.openai_shared import arguments_json
from turnwire.models.responses import input_part


def sdk_messages(history: Sequence[Message], files: LoadedFiles | None = None) -> list[TResponseInputItem]:
    """Convert a conversation to the SDK's input items."""
    return [item for message in history for item in _input_items(message, files or LoadedFiles())]


def _input_items(message: Message, files: LoadedFiles) -> list[TResponseInputItem]:
    content = clean_text(message.content)
    if message.attachments:
        parts: Any = [input_part(part) for part in files.parts(message)]
        return [{"role": "user", "content": parts}]
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id or "", "output": content}]
    items: list[TResponseInputItem] = []
    if content or not message.tool_calls:
        items.append({"role": message.role, "content": content})
    for call in message.tool_calls:
        request = {"call_id": call.call_id, "name": call.tool, "arguments": arguments_json(call)}
        items.append({"type": "function_call", **request})  # pyright: ignore[reportArgumentType]
    return items


async def with_inputs(run: Run, input: Any, options: dict[str, Any]) -> Any:
    """Return the items for a model call, with the messages that have entered the run, each at its place.

    They are added here, because a run of the SDK takes no messages while it runs. Only the turn's own run takes them;
    the agents that its tools run do not. The SDK repeats all items in each call, so the messages are added again; if
    the server keeps the conversation, only the new messages are sent.
    """
    new = await run.take_inputs()
    if not new and not run.inputs:
        return input
    items: list[Any] = [_message(input)] if isinstance(input, str) else list(cast("list[Any]", input))
    if options.get("previous_response_id") or options.get("conversation_id"):
        return [*items, *map(_message, new)]
    if new and run.session is not None:
        await run.session.add_items([_message(content) for content in new])
    run.inputs += [(len(items), content) for content in new]
    for count, (place, content) in enumerate(run.inputs):
        items.insert(place + count, _message(content))
    return items


def _message(content: str) -> TResponseInputItem:
    return {"role": "user", "content": content}
