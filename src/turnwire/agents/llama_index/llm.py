"""A model of any OpenAI-compatible server as an LLM of LlamaIndex, with Turnwire's own client.

LlamaIndex's own package for OpenAI needs an `openai` before version 3. This one has both APIs, and is strict: an answer
that breaks off is an error.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal, cast

from llama_index.core import async_utils
from llama_index.core.base.llms.generic_utils import achat_to_completion_decorator, chat_to_completion_decorator
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    DocumentBlock,
    ImageBlock,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import BaseTool

from turnwire.core.log.events import AttachedFile, ReasoningEvent, UsageEvent
from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.model_options import ModelOptions
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.models.contract import ToolCallRequest, ToolSpec
from turnwire.models.openai_client import OpenAIModel
from turnwire.tools import read_arguments

_FILE = AttachedFile(media_type="application/octet-stream")
INVALID = "invalid_arguments"
"""The name of the only argument of a call whose arguments are not a JSON object: no tool takes it."""


class OpenAICompatibleLLM(FunctionCallingLLM):
    """A model behind an OpenAI-compatible API. Its name may choose a well-known server, as `ollama/qwen3` does.

    The parameters after the model are those of `ChatCompletionsAgent`. It needs the extra `turnwire[openai]`.
    """

    model: str
    context_window: int = 128_000
    _client: OpenAIModel = PrivateAttr()

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        timeout: float = 60.0,
        retries: int = 2,
        context_window: int = 128_000,
    ) -> None:
        super().__init__(model=model, context_window=context_window)
        self._client = OpenAIModel(model, base_url=base_url, api_key=api_key, api=api, timeout=timeout, retries=retries)

    @classmethod
    def class_name(cls) -> str:
        return "turnwire_openai_compatible"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            model_name=self._client.name,
            context_window=self.context_window,
            is_chat_model=True,
            is_function_calling_model=True,
        )

    async def close(self) -> None:
        await self._client.close()

    @property
    def api(self) -> Literal["chat", "responses"]:
        return self._client.api

    def with_options(self, options: ModelOptions) -> "OpenAICompatibleLLM":
        """Return the same model with a client's options, but not its instructions. It shares the connections too."""
        made = self.model_copy()
        made._client = self._client.with_options(options)
        return made

    # Chat

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return self._stream(messages, kwargs.get("tools") or ())

    async def _stream(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> ChatResponseAsyncGen:
        conversation = _Conversation(messages)
        text, calls, usage = "", list[ToolCallBlock](), dict[str, Any]()
        pieces = self._client.stream(
            conversation.instructions, conversation.messages, tools=tools, files=conversation.files
        )
        async with aclosing(pieces):
            async for piece in pieces:
                match piece:
                    case str():
                        text += piece
                        yield _response(text, [], delta=piece)
                    case ReasoningEvent():
                        yield _response(text, [], thinking_delta=piece.content)
                    case ToolCallRequest():
                        calls.append(
                            ToolCallBlock(
                                tool_call_id=piece.call_id,
                                tool_name=piece.tool,
                                tool_kwargs=_read(piece.arguments),
                            )
                        )
                    case UsageEvent():
                        usage = _raw_usage(piece)
        yield _response(text, calls, raw={"model": self._client.name, "usage": usage})

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return [response async for response in await self.astream_chat(messages, **kwargs)][-1]

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return cast("Any", async_utils).asyncio_run(self._chat_on_other_loop(messages, kwargs))

    async def _chat_on_other_loop(self, messages: Sequence[ChatMessage], options: dict[str, Any]) -> ChatResponse:
        other = self.model_copy()
        other._client = self._client.with_own_connections()
        try:
            return await other.achat(messages, **options)
        finally:
            await other.close()

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        yield self.chat(messages, **kwargs)

    # Completion

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return await achat_to_completion_decorator(self.achat)(prompt, **kwargs)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return chat_to_completion_decorator(self.chat)(prompt, **kwargs)

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        return self._stream_complete(prompt, **kwargs)

    async def _stream_complete(self, prompt: str, **kwargs: Any) -> AsyncGenerator[CompletionResponse]:
        async for response in await self.astream_chat([ChatMessage(role="user", content=prompt)], **kwargs):
            yield CompletionResponse(text=response.message.content or "", delta=response.delta, raw=response.raw)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        yield self.complete(prompt, formatted, **kwargs)

    # Tools

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = [*(chat_history or ())]
        if user_msg is not None:
            messages.append(user_msg if isinstance(user_msg, ChatMessage) else ChatMessage(content=user_msg))
        specs = [
            ToolSpec(each.get_name(), each.description, each.get_parameters_dict())
            for each in (cast("Any", tool.metadata) for tool in tools)
        ]
        return {"messages": messages, "tools": specs}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError("the model has called no tool")
        return [
            ToolSelection(tool_id=call.tool_call_id or "", tool_name=call.tool_name, tool_kwargs=_arguments(call))
            for call in calls
        ]


def _response(
    text: str, calls: Sequence[ToolCallBlock], *, delta: str = "", raw: Any = None, **extra: Any
) -> ChatResponse:
    blocks = [*([TextBlock(text=text)] if text else []), *calls]
    message = ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)
    return ChatResponse(message=message, delta=delta, raw=raw, additional_kwargs=extra)


def _raw_usage(usage: UsageEvent) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class _Conversation:
    """Messages of the SDK in the form of our client."""

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        roles = (MessageRole.SYSTEM, MessageRole.DEVELOPER)
        self.instructions = "\n\n".join(message.content or "" for message in messages if message.role in roles)
        others = [message for message in messages if message.role not in roles]
        self.messages = [_message(message) for message in others]
        self.files = _BlockParts({id(ours): _parts(other) for ours, other in zip(self.messages, others, strict=True)})


class _BlockParts(LoadedFiles):
    """The parts of each message, found by the identity of the message and made from the blocks of the SDK's message."""

    def __init__(self, parts: dict[int, list[str | LoadedFile]]) -> None:
        super().__init__()
        self._parts = parts

    def parts(self, message: Message) -> list[str | LoadedFile]:
        return self._parts[id(message)]


def _message(message: ChatMessage) -> Message:
    match message.role:
        case MessageRole.TOOL | MessageRole.FUNCTION:
            return Message("tool", message.content or "", call_id=message.additional_kwargs.get("tool_call_id"))
        case MessageRole.ASSISTANT | MessageRole.CHATBOT | MessageRole.MODEL:
            calls = [
                ToolRequest(block.tool_call_id or "", block.tool_name, _arguments(block))
                for block in message.blocks
                if isinstance(block, ToolCallBlock)
            ]
            return Message("assistant", message.content or "", tool_calls=tuple(calls))
        case _:
            has_parts = len(message.blocks) != 1 or not isinstance(message.blocks[0], TextBlock)
            return Message("user", message.content or "", attachments=(_FILE,) if has_parts and message.blocks else ())


def _parts(message: ChatMessage) -> list[str | LoadedFile]:
    parts: list[str | LoadedFile] = []
    for block in message.blocks:
        match block:
            case TextBlock():
                parts.append(block.text)
            case ImageBlock() if block.url:
                parts.append(LoadedFile(AttachedFile(media_type="image/*", url=str(block.url))))
            case ImageBlock():
                info = AttachedFile(media_type=block.image_mimetype or "image/png")
                parts.append(LoadedFile(info, block.resolve_image().read()))
            case DocumentBlock():
                info = AttachedFile(media_type=block.document_mimetype or "application/pdf", name=block.title)
                parts.append(LoadedFile(info, block.resolve_document().read()))
            case _:
                pass
    return parts


def _read(text: str) -> dict[str, Any]:
    arguments = read_arguments(text)
    return {INVALID: text} if arguments is None else arguments


def _arguments(call: ToolCallBlock) -> dict[str, Any]:
    return call.tool_kwargs if isinstance(call.tool_kwargs, dict) else {INVALID: call.tool_kwargs}
