"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. `RecordedLLM` stands between the agent and its model, and `LlamaStep` between it
and each tool. A tool that runs another agent is a call like any other, and the calls of that agent are recorded inside.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from typing import Any, cast

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import AsyncBaseTool, ToolOutput

from turnwire.agents.llama_index.events import ReplyReader, WorkflowListener
from turnwire.agents.llama_index.options import with_options
from turnwire.agents.llama_index.tools import TurnwireTool
from turnwire.agents.run_recorder import ToolStep
from turnwire.core.errors import TurnEndedError
from turnwire.core.journal.turn_journal import JournaledCall
from turnwire.models.errors import unfinished, unreadable
from turnwire.tools.invocation import plain, running_call, tool_error_text

_CALLS = "turnwire_calls"
"""The key of the tool calls in a reply that is taken from the journal."""

# Models

Live = Callable[[], AsyncGenerator[ChatResponse]]


class RecordedLLM:
    """The LLM of an agent in one run: its calls are reported, recorded, and answered from the journal."""

    def __init__(self, agent: Any, listener: WorkflowListener) -> None:
        self._llm: Any = agent.llm
        self._agent = str(agent.name)
        self._listener = listener
        # Agents other than `FunctionAgent` also write their thoughts and tool calls as text.
        self._thinks = not isinstance(agent, FunctionAgent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def astream_chat_with_tools(self, tools: Sequence[Any], **options: Any) -> AsyncIterator[ChatResponse]:
        history = options.get("chat_history")
        return self._reply(history, lambda: self._stream("astream_chat_with_tools", tools=tools, **options))

    async def astream_chat(self, messages: Sequence[ChatMessage], **options: Any) -> AsyncIterator[ChatResponse]:
        return self._reply(messages, lambda: self._stream("astream_chat", messages, **options))

    async def achat_with_tools(self, tools: Sequence[Any], **options: Any) -> ChatResponse:
        history = options.get("chat_history")
        return await _last(self._reply(history, lambda: self._once("achat_with_tools", tools=tools, **options)))

    async def achat(self, messages: Sequence[ChatMessage], **options: Any) -> ChatResponse:
        return await _last(self._reply(messages, lambda: self._once("achat", messages, **options)))

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **options: Any) -> list[ToolSelection]:
        recorded = cast("dict[str, Any]", cast("Any", response).additional_kwargs).get(_CALLS)
        if recorded is not None:
            return [ToolSelection.model_validate(call) for call in recorded]
        return self._llm.get_tool_calls_from_response(response, *args, **options)

    async def _stream(self, method: str, *args: Any, **options: Any) -> AsyncGenerator[ChatResponse]:
        async for response in await getattr(self._model(options), method)(*args, **options):
            yield response

    async def _once(self, method: str, *args: Any, **options: Any) -> AsyncGenerator[ChatResponse]:
        response: ChatResponse = await getattr(self._model(options), method)(*args, **options)
        yield response.model_copy(update={"delta": response.message.content})

    def _model(self, options: dict[str, Any]) -> Any:
        """Return the LLM of one call, with the client's options."""
        listener = self._listener
        sent = listener.options.for_call(has_tools=bool(options.get("tools")), has_called=listener.has_called)
        return with_options(self._llm, sent)

    async def _reply(self, messages: Sequence[ChatMessage] | None, live: Live) -> AsyncGenerator[ChatResponse]:
        with self._listener.working():
            async for response in self._recorded(messages, live):
                yield response

    async def _recorded(self, messages: Sequence[ChatMessage] | None, live: Live) -> AsyncGenerator[ChatResponse]:
        """Yield the pieces of a reply, or the whole reply if it is in the journal."""
        listener, last = self._listener, None
        listener.count_call()
        names = (self._agent, str(self._llm.metadata.model_name))
        call = await listener.begin_model(names, lambda: [_stable(message) for message in messages or ()])
        with call or nullcontext():
            if call is not None and not call.is_live:
                last = await self._replay(call)
                self._expect_calls(last)
                yield last
                return
            reader = ReplyReader(listener, thinks=self._thinks)
            async for last in self._read(live, reader):
                yield last
            assert last is not None
            reply = last
            await listener.finish_model(call, lambda: self._dump(reply), reader.usage)
            self._expect_calls(reply)

    async def _read(self, live: Live, reader: ReplyReader) -> AsyncGenerator[ChatResponse]:
        listener, is_empty = self._listener, True
        async with aclosing(live()) as responses:
            async for response in responses:
                is_empty = False
                reader.read(response)
                await listener.queue.wait_for_room()
                yield response
        if reader.usage is not None:
            listener.put(reader.usage)
        if is_empty:
            raise unreadable()
        if not reader.is_complete:
            raise unfinished(reader.reason)

    async def _replay(self, call: JournaledCall) -> ChatResponse:
        message = ChatMessage.model_validate(call.result["message"])
        await self._listener.show_again(call, "" if self._thinks else call.result["text"])
        return ChatResponse(message=message, delta="", additional_kwargs={_CALLS: call.result["calls"]})

    def _calls(self, response: ChatResponse) -> list[ToolSelection]:
        if self._thinks:
            return []  # The agent finds its one call in the text.
        return self.get_tool_calls_from_response(response, error_on_no_tool_call=False) or []

    def _expect_calls(self, response: ChatResponse) -> None:
        self._listener.expect_calls([call.tool_id for call in self._calls(response)])

    def _dump(self, response: ChatResponse) -> dict[str, Any]:
        return {
            "message": plain(response.message.model_dump(mode="json", fallback=str)),
            "text": response.message.content or "",
            "calls": [plain(call.model_dump(mode="json", fallback=str)) for call in self._calls(response)],
        }


async def _last(responses: AsyncGenerator[ChatResponse]) -> ChatResponse:
    return [response async for response in responses][-1]


def _stable(message: ChatMessage) -> Any:
    """Return a message without what a provider adds to it, which a recorded one may lack."""
    call_id = message.additional_kwargs.get("tool_call_id")
    return [plain(message.model_dump(mode="json", exclude={"additional_kwargs"}, fallback=str)), call_id]


# Tools


class LlamaStep(ToolStep[ToolOutput]):
    """One tool call. `store` is that of the run's context, which the tool may change."""

    def __init__(
        self,
        listener: WorkflowListener,
        call_id: str,
        tool: AsyncBaseTool,
        args: dict[str, Any],
        store: Any,
        execute: Callable[[dict[str, Any]], Awaitable[ToolOutput]],
    ) -> None:
        ours = tool.ours if isinstance(tool, TurnwireTool) else None
        super().__init__(call_id, tool.metadata.get_name(), plain(args), ours)
        asks = ours is not None and bool(ours.requires_approval(self.args))
        self.needs_approval = asks or self.tool in listener.needs_approval
        self._own_args = args
        self._store = store
        self._execute = execute
        self._changes = listener.changes
        self._recorded_changes: dict[str, Any] | None = None

    async def run(self, args: dict[str, Any]) -> ToolOutput:
        await self._changes.take(self._store)
        with running_call(self.call_id):
            output = await self._execute(self._own_args if args is self.args else args)
        if isinstance(output.exception, TurnEndedError):
            raise output.exception
        self._recorded_changes = await self._changes.take(self._store)
        return self.fail(tool_error_text(self.tool, output.exception)) if output.exception else output

    def fail(self, text: str) -> ToolOutput:
        return failed_output(self.tool, text)

    def dump(self, outcome: ToolOutput) -> dict[str, Any]:
        return {
            "blocks": [plain(block.model_dump(mode="json", fallback=str)) for block in outcome.blocks],
            "raw_output": plain(outcome.raw_output),
            "is_error": outcome.is_error,
            "changes": self._recorded_changes,
        }

    async def load(self, recorded: dict[str, Any]) -> ToolOutput:
        fields = {name: value for name, value in recorded.items() if name != "changes"}
        await self._changes.restore(self._store, recorded["changes"])
        return ToolOutput(self.tool, raw_input=self.args, **fields)


def show_output(output: ToolOutput) -> tuple[bool, Any]:
    """Return whether a call has succeeded, and its result for the log."""
    return not output.is_error, output.content if output.is_error else output.raw_output


def failed_output(tool: str, text: str) -> ToolOutput:
    return ToolOutput(tool, content=text, raw_input={}, raw_output=text, is_error=True)
