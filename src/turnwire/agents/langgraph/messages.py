"""Conversations in LangChain's form, the content of its messages, and messages that enter a running graph."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.errors import GraphDrained
from langgraph.graph import add_messages  # pyright: ignore[reportMissingTypeStubs]
from langgraph.runtime import RunControl
from langgraph.types import Command

from turnwire.agents.agent_paths import Path
from turnwire.agents.langgraph.nodes import has_message_ids
from turnwire.core.log.events import UsageEvent
from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message
from turnwire.core.run.inputs import TurnInputs, current_inputs
from turnwire.models.errors import unfinished

# Providers that always report why a complete reply ended.
_REPORTING = frozenset({"openai", "azure", "azure_openai", "anthropic", "deepseek", "groq", "mistralai", "xai"})
_REASONS = ("finish_reason", "stop_reason", "status")
_TRUNCATED = frozenset({"length", "max_tokens", "model_length", "content_filter", "refusal"})
_CANCELLED = '{"error":"cancelled"}'


def fields_of(value: Any) -> dict[str, Any]:
    """Return a graph's state as a dict; a state of another type has no fields here."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def sdk_messages(
    history: Sequence[Message], prefix: str = "history", files: LoadedFiles | None = None
) -> list[BaseMessage]:
    """Convert a conversation to LangChain's messages. Their ids begin with the prefix."""
    # With an id, LangGraph recognises a message that a node returns again, and does not stream it as new.
    files = files or LoadedFiles()
    return [_sdk_message(message, f"{prefix}-{number}", files) for number, message in enumerate(history)]


def human_message(message: Message, files: LoadedFiles, own_id: str | None = None) -> HumanMessage:
    """Return a message of the user in LangChain's form: text, or text and files as content blocks."""
    if not message.attachments:
        return HumanMessage(message.content, id=own_id)
    blocks: list[Any] = [_block(part) for part in files.parts(message)]
    return HumanMessage(blocks, id=own_id)


def _block(part: str | LoadedFile) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = "image" if part.is_image else "file"
    if part.info.url is not None:
        return {"type": kind, "url": part.info.url}
    block: dict[str, Any] = {"type": kind, "base64": part.base64, "mime_type": part.info.media_type}
    # OpenAI's models need the name of a file, which LangChain takes from here.
    return block if part.is_image else {**block, "extras": {"filename": part.name}}


def _sdk_message(message: Message, own_id: str, files: LoadedFiles) -> BaseMessage:
    match message.role:
        case "user":
            return human_message(message, files, own_id)
        case "tool":
            return ToolMessage(message.content, tool_call_id=message.call_id or "", id=own_id)
        case "assistant":
            calls: Any = [{"name": call.tool, "args": call.args, "id": call.call_id} for call in message.tool_calls]
            return AIMessage(message.content, tool_calls=calls, id=own_id)


def cancelled_results(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return `cancelled` results for the calls that have no result."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    calls = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [ToolMessage(_CANCELLED, tool_call_id=call or "", status="error") for call in calls if call not in answered]


def is_transfer(message: BaseMessage) -> bool:
    """Return True for the messages by which a LangGraph supervisor gets control back, which nobody wrote."""
    return bool(message.response_metadata.get("__is_handoff_back"))


def read_text(message: str | BaseMessage) -> str:
    if isinstance(message, str):
        return message
    return "".join(text for kind, text in read_pieces(message) if kind == "text")


def read_pieces(message: BaseMessage) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a message with their kind, `text` or `reasoning`."""
    reasoning = message.additional_kwargs.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        yield "reasoning", reasoning
    content = message.content
    if isinstance(content, str):
        if content:
            yield "text", content
        return
    for block in cast("list[Any]", message.content_blocks):
        kind: str = block.get("type", "")
        text = block.get(kind) if kind in ("text", "reasoning") else None
        if isinstance(text, str) and text:
            yield kind, text


def reply_of(response: LLMResult) -> AIMessage | None:
    generation = next((generation for group in response.generations for generation in group), None)
    message = generation.message if isinstance(generation, ChatGeneration) else None
    return message if isinstance(message, AIMessage) else None


def tool_message(output: Any, call_id: str) -> ToolMessage | None:
    """Return the message with the call's result in a tool's output, which may be a `Command`."""
    messages: list[Any] = [output]
    if isinstance(output, Command):
        messages = fields_of(cast("Command[Any]", output).update).get("messages", [])
    results = (message for message in messages if isinstance(message, ToolMessage))
    return next((message for message in results if message.tool_call_id == call_id), None)


def check_complete(message: AIMessage) -> None:
    """Raise ModelError if the reply is truncated, or has no finish reason where the provider always reports one."""
    metadata = message.response_metadata
    reason = next((metadata[name] for name in _REASONS if metadata.get(name)), None)
    if reason == "incomplete":
        raise unfinished(fields_of(metadata.get("incomplete_details")).get("reason"))
    if reason in _TRUNCATED:
        raise unfinished({"model_length": "length", "refusal": "content_filter"}.get(reason, reason))
    if reason is None and metadata.get("model_provider") in _REPORTING:
        raise unfinished(None)


def usage_event(message: AIMessage, path: Path) -> UsageEvent | None:
    usage = message.usage_metadata
    if usage is None:
        return None
    return UsageEvent(
        model=message.response_metadata.get("model_name"),
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cached_input_tokens=usage.get("input_token_details", {}).get("cache_read"),
        reasoning_tokens=usage.get("output_token_details", {}).get("reasoning"),
        agent_path=path,
    )


async def stream_steered(
    graph: Any, input: Any, config: RunnableConfig, flush: Callable[[], Awaitable[None]], number: int, **options: Any
) -> AsyncGenerator[tuple[tuple[str, ...], str, Any]]:
    """Yield what `graph.astream` yields, and take the messages that come meanwhile into the graph's state.

    To take messages, the graph is drained, and goes on from a checkpoint that has them. A graph whose state has no
    `messages` takes none: a message to it becomes the next turn. `flush` waits until the graph's events are in the log.
    `number` counts the times that the graph has been resumed in its run.
    """
    inputs = current_inputs()
    if inputs is None or not has_message_ids(graph):
        async with aclosing(graph.astream(input, config, **options)) as items:
            async for item in items:
                yield item
        return
    steps = 0
    while True:
        control = RunControl()
        try:
            async with aclosing(graph.astream(input, config, control=control, **options)) as items:
                async for space, mode, item in items:
                    yield space, mode, item
                    if mode == "updates" and not space:
                        steps += 1
                        if not control.drain_requested and await inputs.is_due():
                            control.request_drain("input")
            return
        except GraphDrained:
            await flush()
            # The run goes on from its newest checkpoint, which may not be the one that it began with.
            configurable = {**config.get("configurable", {})}
            configurable.pop("checkpoint_id", None)
            config, input = {**config, "configurable": configurable}, None
            await _add_messages(graph.checkpointer, config, inputs, f"step {number}.{steps}")


async def _add_messages(saver: BaseCheckpointSaver[Any], config: RunnableConfig, inputs: TurnInputs, key: str) -> None:
    saved = await saver.aget_tuple(config)
    found: Any = saved.checkpoint["channel_values"].get("messages") if saved else None
    if saved is None or not isinstance(found, list):
        return
    messages = cast("list[Any]", found)
    # A message between a call and its result would be rejected by model providers.
    if cancelled_results(messages):
        return
    new: list[Any] = [HumanMessage(content) for content in await inputs.take_at(key)]
    if not new:
        return
    version = saver.get_next_version(saved.checkpoint["channel_versions"].get("messages"), None)
    # Not with `aupdate_state`, which would forget the next steps, unless they follow from the edges of one node.
    checkpoint: Checkpoint = {
        **saved.checkpoint,
        "id": str(uuid6()),
        "channel_values": {**saved.checkpoint["channel_values"], "messages": add_messages(messages, new)},
        "channel_versions": {**saved.checkpoint["channel_versions"], "messages": version},
    }
    await saver.aput(saved.config, checkpoint, {**saved.metadata, "source": "update"}, {"messages": version})
