"""Acme Agents: a made-up SDK of the usual shape. Its agent has a model and tools, and streams events."""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI


@dataclass
class Call:
    id: str
    name: str = ""
    arguments: str = ""


@dataclass
class ChatMessage:
    role: str
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    call_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
            ids = [call.id for call in self.calls]
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": function}
                for id_, function in zip(ids, functions, strict=True)
            ]
        return message | ({"tool_call_id": self.call_id} if self.call_id else {})


@dataclass
class TextDelta:
    text: str


@dataclass
class ThoughtDelta:
    text: str


@dataclass
class Reply:
    """The end of one model call."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None
    tokens: tuple[int, int] | None = None


@dataclass
class ToolStarted:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class ToolEnded:
    id: str
    name: str
    output: Any
    error: Exception | None = None
    ms: float | None = None


AcmeEvent = TextDelta | ThoughtDelta | Reply | ToolStarted | ToolEnded
ModelEvents = AsyncIterator[TextDelta | ThoughtDelta | Reply]


class TooManyRounds(Exception):
    """The model still calls tools in its last round."""


class Middleware:
    """Hooks around each model call and each tool call of a run."""

    def model(self, messages: list[ChatMessage], call: Callable[[], ModelEvents]) -> ModelEvents:
        return call()

    async def tool(self, started: ToolStarted, run: Callable[[], Awaitable[ToolEnded]]) -> ToolEnded:
        return await run()


class AcmeAgent:
    """An agent that streams what it does. A tool that raises is reported to the model."""

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        *,
        tools: Iterable[Callable[..., Any]] = (),
        prompt: str = "",
        rounds: int = 20,
    ) -> None:
        self.client, self.model, self.prompt, self.rounds = client, model, prompt, rounds
        self.tools = {tool.__name__: tool for tool in tools}

    async def stream(self, messages: Sequence[ChatMessage], middleware: Middleware) -> AsyncGenerator[AcmeEvent]:
        messages = [ChatMessage("system", self.prompt), *messages]
        for _ in range(self.rounds):
            reply = Reply()
            async for event in middleware.model(messages, lambda: self._call_model(messages)):
                reply = event if isinstance(event, Reply) else reply
                yield event
            messages.append(ChatMessage("assistant", reply.text, reply.calls))
            if not reply.calls:
                return
            started = [ToolStarted(call.id, call.name, _arguments(call)) for call in reply.calls]
            for each in started:
                yield each
            tasks = [asyncio.create_task(middleware.tool(each, lambda each=each: self._run(each))) for each in started]
            try:
                for done in asyncio.as_completed(tasks):
                    yield await done
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for ended in (task.result() for task in tasks):
                text = f"Error: {ended.error!r}" if ended.error else ended.output
                text = text if isinstance(text, str) else json.dumps(text)
                messages.append(ChatMessage("tool", text, call_id=ended.id))
        raise TooManyRounds(f"{self.rounds} rounds")

    async def _call_model(self, messages: list[ChatMessage]) -> ModelEvents:
        reply, calls = Reply(), dict[int, Call]()
        body: Any = {"model": self.model, "messages": [message.to_json() for message in messages], "stream": True}
        if self.tools:
            body["tools"] = [_schema(tool) for tool in self.tools.values()]
        stream: Any = await self.client.chat.completions.create(**body, stream_options={"include_usage": True})
        async with stream:
            async for chunk in stream:
                if chunk.usage:
                    reply.tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                for choice in chunk.choices:
                    reply.finish_reason = choice.finish_reason or reply.finish_reason
                    if thought := getattr(choice.delta, "reasoning_content", None):
                        yield ThoughtDelta(thought)
                    if text := choice.delta.content:
                        reply.text += text
                        yield TextDelta(text)
                    for piece in choice.delta.tool_calls or ():
                        call = calls.setdefault(piece.index, Call(piece.id))
                        call.name += piece.function.name or ""
                        call.arguments += piece.function.arguments or ""
        reply.calls = list(calls.values())
        yield reply

    async def _run(self, call: ToolStarted) -> ToolEnded:
        began, output, failure = time.perf_counter(), None, None
        try:
            function = self.tools[call.name]
            inspect.signature(function).bind(**call.arguments)
            if inspect.iscoroutinefunction(function):
                output = await function(**call.arguments)
            else:
                output = await asyncio.to_thread(function, **call.arguments)
        except Exception as error:
            failure = error
        return ToolEnded(call.id, call.name, output, failure, (time.perf_counter() - began) * 1000)


def _arguments(call: Call) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _schema(tool: Callable[..., Any]) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in inspect.signature(tool).parameters}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}
    return {"type": "function", "function": function}
