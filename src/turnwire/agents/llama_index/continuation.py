"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. `RecordedLLM` stands between the agent and its model, and `run_recorded` between it
and each tool. A tool that runs another agent is a call like any other, and the calls of that agent are recorded inside.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

from llama_index.core.agent.workflow import FunctionAgent, ToolCall
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import AsyncBaseTool, ToolOutput

from turnwire.agents.llama_index.approvals import ApprovalRules
from turnwire.agents.llama_index.events import ReplyReader, WorkflowListener
from turnwire.agents.llama_index.options import with_options
from turnwire.agents.llama_index.tools import TurnwireTool, check_arguments
from turnwire.core.errors import TurnEndedError
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError, fingerprint
from turnwire.core.log.events import Usage
from turnwire.models.errors import unfinished, unreadable
from turnwire.tools.declaration import BadArgumentsError
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
        listener, journal = self._listener, self._listener.queue.journal
        listener.begin_reply()
        await listener.queue.flush()
        if journal is None:
            last = None
            async for last in self._read(live, ReplyReader(listener, thinks=self._thinks)):
                yield last
            self._expect_calls(last)
            return
        digest = fingerprint([_stable(message) for message in messages or ()])
        names = (self._agent, str(self._llm.metadata.model_name))
        call = await journal.begin_model(listener.place, names=names, fingerprint=digest, agent_path=listener.path)
        with call:
            if not call.is_live:
                last = await self._replay(call)
                self._expect_calls(last)
                yield last
                return
            reader, last = ReplyReader(listener, thinks=self._thinks), None
            async for last in self._read(live, reader):
                yield last
            assert last is not None
            await listener.queue.flush()
            usage = reader.usage and Usage(reader.usage.input_tokens, reader.usage.output_tokens)
            call.finish(self._dump(last), usage=usage)
            self._expect_calls(last)

    async def _read(self, live: Live, reader: ReplyReader) -> AsyncGenerator[ChatResponse]:
        listener, is_empty = self._listener, True
        async with aclosing(live()) as responses:
            async for response in responses:
                is_empty = False
                reader.read(response)
                await listener.queue.wait_for_room()
                yield response
        if reader.usage is not None:
            listener.record(reader.usage)
        if is_empty:
            raise unreadable()
        if not reader.is_complete:
            raise unfinished(reader.reason)

    async def _replay(self, call: JournaledCall) -> ChatResponse:
        listener, message = self._listener, ChatMessage.model_validate(call.result["message"])
        text = "" if self._thinks else call.result["text"]
        if call.is_shown:
            listener.skip_text(text)
        else:
            if text:
                listener.write_text(text)
            await listener.queue.flush()
            call.show()
        return ChatResponse(message=message, delta="", additional_kwargs={_CALLS: call.result["calls"]})

    def _calls(self, response: ChatResponse) -> list[ToolSelection]:
        if self._thinks:
            return []  # The agent finds its one call in the text.
        return self.get_tool_calls_from_response(response, error_on_no_tool_call=False) or []

    def _expect_calls(self, response: ChatResponse | None) -> None:
        self._listener.expect_calls([] if response is None else [call.tool_id for call in self._calls(response)])

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


async def run_recorded(
    listener: WorkflowListener,
    rules: ApprovalRules,
    call: ToolCall,
    tool: AsyncBaseTool,
    args: dict[str, Any],
    store: Any,
    execute: Callable[[dict[str, Any]], Awaitable[ToolOutput]],
) -> ToolOutput:
    """Run a tool, or return what it returned before the crash. A person may have to decide about it first.

    `store` is that of the run's context, which the tool may change.
    """
    name, journal = tool.metadata.get_name(), listener.queue.journal
    try:
        check_arguments(tool, args)
    except BadArgumentsError as error:
        return _failure(name, tool_error_text(name, error))
    decision = await rules.decide(tool, call.tool_id, plain(args), listener.path)
    if decision is not None:
        if not decision.approved:
            return _failure(name, decision.denial)
        args = args if decision.requested_args is None else decision.args
    if journal is None:
        return await _run(call, name, args, execute)
    repeatable = isinstance(tool, TurnwireTool) and tool.tool.idempotent
    try:
        step = await journal.begin_tool(
            listener.place, call.tool_id, name, plain(args), agent_path=listener.path, repeatable=repeatable
        )
    except ToolDeniedError as denied:
        return _failure(name, str(denied))
    with step:
        if not step.is_live:
            recorded: dict[str, Any] = {**step.result}
            await listener.changes.restore(store, recorded.pop("changes", None))
            return ToolOutput(name, raw_input=args, **recorded)
        await listener.changes.take(store)
        output = await _run(call, name, args, execute)
        changes = await listener.changes.take(store)
        step.finish(_dump_output(output) | ({"changes": changes} if changes else {}))
    return output


async def _run(
    call: ToolCall, name: str, args: dict[str, Any], execute: Callable[[dict[str, Any]], Awaitable[ToolOutput]]
) -> ToolOutput:
    with running_call(call.tool_id):
        output = await execute(args)
    if isinstance(output.exception, TurnEndedError):
        raise output.exception
    return _failure(name, tool_error_text(name, output.exception)) if output.exception else output


def _failure(name: str, text: str) -> ToolOutput:
    return ToolOutput(name, content=text, raw_input={}, raw_output=text, is_error=True)


def _dump_output(output: ToolOutput) -> dict[str, Any]:
    return {
        "blocks": [plain(block.model_dump(mode="json", fallback=str)) for block in output.blocks],
        "raw_output": plain(output.raw_output),
        "is_error": output.is_error,
    }
