"""Conversations in LangChain's words, and what is said in its messages."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.types import Command

from turnwire.core.events import Event, ReasoningEvent, TokenEvent, UsageEvent
from turnwire.core.turns import Message
from turnwire.models.errors import unfinished

Heard = Event | str
Path = tuple[str, ...]

# Of these it is known that a whole answer says so, and where.
_TELLING = frozenset({"openai", "azure", "azure_openai", "anthropic", "deepseek", "groq", "mistralai", "xai"})
_REASONS = ("finish_reason", "stop_reason", "status")
_HALF = frozenset({"length", "max_tokens", "model_length", "content_filter", "refusal"})
_CANCELLED = '{"error":"cancelled"}'


def fields_of(value: Any) -> dict[str, Any]:
    """A state is what its graph says it is; often, but not always, a dict."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def langchain_messages(history: Sequence[Message]) -> list[BaseMessage]:
    """The conversation so far, in LangChain's words."""
    # With an id, LangGraph knows a message again that a node returns with its own, and does not tell it as new.
    return [_langchain_message(message, f"history-{number}") for number, message in enumerate(history)]


def _langchain_message(message: Message, own_id: str) -> BaseMessage:
    match message.role:
        case "user":
            return HumanMessage(message.content, id=own_id)
        case "tool":
            return ToolMessage(message.content, tool_call_id=message.call_id or "", id=own_id)
        case "assistant":
            calls: Any = [{"name": call.tool, "args": call.args, "id": call.call_id} for call in message.tool_calls]
            return AIMessage(message.content, tool_calls=calls, id=own_id)


def unanswered(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Results for the calls that have none."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    asked = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [ToolMessage(_CANCELLED, tool_call_id=one or "", status="error") for one in asked if one not in answered]


def read_text(said: str | BaseMessage) -> str:
    if isinstance(said, str):
        return said
    return "".join(text for kind, text in read_pieces(said) if kind == "text")


def read_pieces(message: BaseMessage) -> Iterator[tuple[str, str]]:
    """What a message says, as `text` or `reasoning`."""
    thought = message.additional_kwargs.get("reasoning_content")
    if isinstance(thought, str) and thought:
        yield "reasoning", thought
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


def words(message: BaseMessage, path: Path) -> Iterator[Heard]:
    for kind, text in read_pieces(message):
        if kind == "reasoning":
            yield ReasoningEvent(text, agent_path=path)
        else:
            yield TokenEvent(text, agent_path=path) if path else text


def answer_of(response: LLMResult) -> AIMessage | None:
    generation = next((one for some in response.generations for one in some), None)
    message = generation.message if isinstance(generation, ChatGeneration) else None
    return message if isinstance(message, AIMessage) else None


def tool_message(output: Any, call_id: str) -> ToolMessage | None:
    written: list[Any] = [output]
    if isinstance(output, Command):
        written = fields_of(cast("Command[Any]", output).update).get("messages", [])
    return next((one for one in written if isinstance(one, ToolMessage) and one.tool_call_id == call_id), None)


def check_whole(message: AIMessage) -> None:
    """Raises ModelError when the model has not said that it was finished."""
    told = message.response_metadata
    reason = next((told[name] for name in _REASONS if told.get(name)), None)
    if reason == "incomplete":
        raise unfinished(fields_of(told.get("incomplete_details")).get("reason"))
    if reason in _HALF:
        raise unfinished({"model_length": "length", "refusal": "content_filter"}.get(reason, reason))
    if reason is None and told.get("model_provider") in _TELLING:
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
