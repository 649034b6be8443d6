"""An agent for any OpenAI-compatible server: a model, instructions, and plain functions as its tools.

    agent = ChatCompletionsAgent("qwen3:8b", base_url="http://localhost:11434/v1", tools=[weather])

It needs no agent SDK. With `api="responses"` it speaks the Responses API.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from copy import copy
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from turnwire.agents.text_tool_calls import TextToolCalls
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.errors import AgentError
from turnwire.core.ids import new_id
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError, current_journal, fingerprint
from turnwire.core.journal.waits import ClientTool, approval, check_names, client_tools
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ApprovalRequestEvent, Event, ToolCallEvent, ToolResultEvent, Usage, UsageEvent
from turnwire.core.log.files import MODEL_FILE_TYPES, user_message
from turnwire.core.log.history import PARAGRAPH, add_messages
from turnwire.core.log.model_options import OPTION_NAMES, SAFE_OPTIONS, ModelOptions, chosen_options
from turnwire.core.log.turns import Message, ToolRequest, Turn
from turnwire.core.run.inputs import TurnInputs, current_inputs
from turnwire.models.address import ModelAddress
from turnwire.models.contract import Model, ToolCallRequest, ToolSpec
from turnwire.models.openai_client import OpenAIModel
from turnwire.tools import Tool, ToolOutcome, Toolset, open_toolsets, read_arguments, run_tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_client_tool

_MAX_CALLS_PER_REPLY = 64
_MAX_PARALLEL_TOOLS = 8
_NO_OPTIONS = ModelOptions()


Approve = Callable[[ApprovalRequestEvent], Awaitable[bool]]
Decide = Callable[[ApprovalRequestEvent], Awaitable[Decision]]
OnEvent = Callable[[str, dict[str, Any]], Awaitable[None]]


def _possible_options(model: Model) -> Collection[str]:
    """Return the model options that can be sent to a model's server."""
    if not isinstance(model, OpenAIModel):
        return ("instructions",)
    return OPTION_NAMES if model.api == "chat" else [name for name in OPTION_NAMES if name != "stop"]


class ChatCompletionsAgent:
    """An agent that calls a model and runs its tools. `max_steps` limits the model calls of one turn.

    A turn whose worker was lost continues: calls of the model and of tools that had finished are answered from the
    turn's journal. With `on_crash="close"` it ends instead. `tools` may contain toolsets such as `McpServer`: the first
    turn opens them, `close` closes them. `takes_attachments` are the media types of files that the model can read.
    `takes_model_options` are the names of the model options that clients may send (see `core.log.model_options`), by
    default all but `instructions`. `base_url` and the parameters after it apply to a model given by name.

    Raises ModelUnusableError, TypeError for a function that cannot be a tool, and ValueError for two tools of one name.
    """

    description: str | None = None
    starters: Sequence[str] = ()
    takes_client_tools = True

    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str = "",
        tools: Iterable[Tool | Toolset | Function] = (),
        max_steps: int = 20,
        on_crash: OnCrash = "resume",
        on_divergence: OnDivergence = "end",
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = SAFE_OPTIONS,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "responses"] = "chat",
        timeout: float = 60.0,
        retries: int = 2,
    ) -> None:
        self.model: Model = (
            OpenAIModel(model, base_url=base_url, api_key=api_key, api=api, timeout=timeout, retries=retries)
            if isinstance(model, str)
            else model
        )
        self.instructions = instructions
        self.max_steps = max_steps
        self.on_crash: OnCrash = on_crash
        self.on_divergence: OnDivergence = on_divergence
        self.takes_attachments = takes_attachments
        self.takes_model_options = chosen_options(takes_model_options, _possible_options(self.model))
        self.tools: dict[str, Tool] = {}
        self.toolsets: list[Toolset] = []
        for item in tools:
            if isinstance(item, Toolset):
                self.toolsets.append(item)
                continue
            tool = as_tool(item)
            if tool.name in self.tools:
                raise ValueError(f"two tools are named {tool.name!r}; rename one of them with @tool(name=...)")
            self.tools[tool.name] = tool

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        messages = [*turn.history, user_message(turn)]
        name: str | None = turn.options.get("model")
        model = self.model.renamed(name) if name and isinstance(self.model, OpenAIModel) else self.model
        offered = client_tools(turn.options)
        return self._run(messages, approval, turn.progress, model, current_inputs(), offered, turn.model_options)

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(self.tools)

    @property
    def takes_model(self) -> bool:
        """Whether a turn may name another model of the same server."""
        return isinstance(self.model, OpenAIModel)

    def repeats(self, tool: str) -> bool:
        """Return True if an interrupted call of the tool may run again. A toolset's own claims are not trusted."""
        return tool in self.tools and self.tools[tool].idempotent

    def with_model(self, address: ModelAddress) -> "ChatCompletionsAgent":
        """Return a copy of the agent with another model, which shares the toolsets. Close both agents."""
        agent = copy(self)
        agent.model = OpenAIModel(address.name, base_url=address.url, api_key=address.key or "none")
        return agent

    async def agent_turn(
        self,
        session: list[Message],
        message: str,
        *,
        on_event: OnEvent | None = None,
        approve: Approve | None = None,
    ) -> str:
        """Run one turn without a server: return the answer and append the exchange to `session`.

        `on_event(event_type, data)` is awaited before each tool call (`tool_call`: tool, args, call_id), after each
        (`tool_result`: tool, success, result, call_id) and with the answer (`response`: content), or with the failure
        (`error`: error). `approve(request)` is awaited for calls that need approval; without it they are denied. Raises
        AgentError and what the callbacks raise; the session is then unchanged.
        """
        try:
            content = await self._agent_turn(session, message, on_event, approve)
        except Exception as error:
            if on_event is not None:
                text = str(error) if isinstance(error, AgentError) else f"The agent failed ({type(error).__name__})."
                await on_event("error", {"error": text})
            raise
        if on_event is not None:
            await on_event("response", {"content": content})
        return content

    async def _agent_turn(
        self, session: list[Message], message: str, on_event: OnEvent | None, approve: Approve | None
    ) -> str:
        content = ""
        messages = [*session, Message("user", message)]
        async with aclosing(self._run(messages, _one_by_one(approve))) as events:
            async for event in events:
                if isinstance(event, str):
                    content += event
                elif on_event is not None:
                    await _report(on_event, event)
        session[:] = messages
        return content

    async def close(self) -> None:
        """Close the connections to the model's server, and the toolsets."""
        await asyncio.gather(self.model.close(), *(toolset.close() for toolset in self.toolsets))

    async def _run(
        self,
        messages: list[Message],
        decide: Decide,
        progress: Sequence[Message] = (),
        model: Model | None = None,
        inputs: TurnInputs | None = None,
        offered: Sequence[ClientTool] = (),
        options: ModelOptions = _NO_OPTIONS,
    ) -> AsyncGenerator[Event | str]:
        """Answer the last message, and append the messages of the run to `messages`."""
        tools = await open_toolsets(self.tools, self.toolsets)
        instructions = options.extend(self.instructions)
        loop = ToolLoop(
            model or self.model, instructions, tools, messages, self.max_steps, decide, inputs, offered, options
        )
        async with aclosing(loop.run(progress)) as events:
            async for event in events:
                yield event


def _one_by_one(approve: Approve | None) -> Decide:
    """Return a function that asks the callback about one request at a time, and denies all without a callback."""
    deciding = asyncio.Lock()

    async def decide(request: ApprovalRequestEvent) -> Decision:
        async with deciding:
            approved = approve is not None and await approve(request)
        reason = None if approve is not None else "no approval callback was passed"
        return Decision(call_id=request.call_id, tool=request.tool, args=request.args, approved=approved, reason=reason)

    return decide


async def _report(on_event: OnEvent, event: Event) -> None:
    match event:
        case ToolCallEvent():
            await on_event("tool_call", {"tool": event.tool, "args": event.args, "call_id": event.call_id})
        case ToolResultEvent():
            data = {"tool": event.tool, "success": event.success, "result": event.result, "call_id": event.call_id}
            await on_event("tool_result", data)
        case _:
            pass


class _ModelReply(Struct):
    """One reply of the model, as far as it has come."""

    text: str = ""
    calls: list[ToolCallRequest] = []
    usage: Usage | None = None


class _LoopCall(Struct, frozen=True):
    """One tool call. `args` is None if the arguments are not JSON."""

    call_id: str
    tool: str
    args: dict[str, Any] | None


class ToolLoop:
    """One run of a model with tools: call the model, run the tools it requests, and repeat until it answers.

    `messages` is the conversation. The run appends its own messages to it, and before each model call the new messages
    of `inputs`. `decide` is awaited before a tool that needs approval runs. The model is offered `client_tools` beside
    `tools`; the client runs them. `options` are the client's model options; the client's instructions are part of
    `instructions` already.

    Raises AgentError if two tools have the same name.
    """

    def __init__(
        self,
        model: Model,
        instructions: str,
        tools: Mapping[str, Tool],
        messages: list[Message],
        max_steps: int,
        decide: Decide,
        inputs: TurnInputs | None = None,
        client_tools: Sequence[ClientTool] = (),
        options: ModelOptions = _NO_OPTIONS,
    ) -> None:
        check_names(tools, client_tools)
        self.messages = messages
        self._initial_count = len(messages)
        self._model = model
        self._options = options
        self._instructions = instructions
        self._tools = tools
        self._client_tools = {tool.name for tool in client_tools}
        self._specs = [
            ToolSpec(tool.name, tool.description, tool.parameters) for tool in (*tools.values(), *client_tools)
        ]
        self._max_steps = max_steps
        self._decide = decide
        self._call_ids = {call.call_id for message in messages for call in message.tool_calls}
        self._reply = _ModelReply()
        self._step = 0
        self._journal = current_journal()
        self._place = self._journal.place("run") if self._journal else ""
        self._inputs = inputs
        self._has_text = False

    async def run(self, progress: Sequence[Message] = ()) -> AsyncGenerator[Event | str]:
        """Run to the final answer, from `progress` if there is some.

        Raises ModelError, and AgentError `max_turns` if the model still requests tools at the limit.
        """
        calls = self._restore_progress(progress)
        while True:
            async with aclosing(self._run_tools(calls)) as results:
                async for event in results:
                    yield event
            if self._step >= self._max_steps:
                break
            self._step += 1
            if self._inputs is not None:
                sent = await self._inputs.take(self._place)
                add_messages(self.messages, [Message("user", content) for content in sent])
            async with aclosing(self._next_reply()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str) and self._has_text:
                        self._has_text = False
                        yield PARAGRAPH  # Text before and after a tool call are separate paragraphs.
                    yield piece
            reply = self._reply
            calls = [_LoopCall(call.call_id, call.tool, read_arguments(call.arguments)) for call in reply.calls]
            requests = tuple(ToolRequest(call.call_id, call.tool, call.args or {}) for call in calls)
            self.messages.append(Message("assistant", reply.text, tool_calls=requests))
            if not requests:
                return
            if self._step == self._max_steps:
                break  # No model call is left that could read the tools' results.
            self._has_text = self._has_text or bool(reply.text)
            for request in requests:
                yield ToolCallEvent(request.call_id, request.tool, request.args)
        raise AgentError(
            f"The model was called {self._max_steps} times and still requests tools; send a smaller request.",
            code="max_turns",
        )

    def _restore_progress(self, progress: Sequence[Message]) -> list[_LoopCall]:
        """Restore the run from the messages in its log, and return the calls that have no result."""
        for message in progress:
            content = message.content
            if message.role == "assistant":
                # The loop wrote the empty line between paragraphs, not the model.
                content = content.removeprefix(PARAGRAPH) if self._has_text else content
                self._has_text = self._has_text or bool(content)
                self._step += bool(message.tool_calls)
            self.messages.append(structs.replace(message, content=content))
        self._call_ids |= {call.call_id for message in progress for call in message.tool_calls}
        ended = {message.call_id for message in progress}
        return [
            _LoopCall(call.call_id, call.tool, call.args)
            for message in progress
            for call in message.tool_calls
            if call.call_id not in ended
        ]

    async def _next_reply(self) -> AsyncGenerator[Event | str]:
        """Stream one reply of the model, or take it from the journal if it was finished before a crash."""
        call: JournaledCall | None = None
        if self._journal is not None:
            request = (self._instructions, self.messages, self._specs)
            digest = fingerprint((*request, self._options) if self._options != _NO_OPTIONS else request)
            call = await self._journal.begin_model(self._place, names=(self._model.name,), fingerprint=digest)
        with call or nullcontext():
            if call is None or call.is_live:
                async with aclosing(self._call_model()) as pieces:
                    async for piece in pieces:
                        yield piece
                reply = self._reply
                if call is not None:
                    call.finish({"text": reply.text, "calls": msgspec.to_builtins(reply.calls)}, usage=reply.usage)
                return
            reply = self._reply = msgspec.convert(call.result, _ModelReply)
            self._set_calls(reply)
            if reply.text and call.is_shown:
                self._has_text = False
            elif reply.text:
                yield reply.text
            if not call.is_shown:
                call.show()

    async def _call_model(self) -> AsyncGenerator[Event | str]:
        """Stream one reply of the model, and keep it in `_reply`."""
        reply = self._reply = _ModelReply()
        # An answer that is JSON may look like a call.
        parser = TextToolCalls([] if self._options.response_format else [*self._tools, *self._client_tools])
        model = self._next_model()
        async with aclosing(model.stream(self._instructions, self.messages, tools=self._specs)) as stream:
            async for piece in stream:
                if isinstance(piece, ToolCallRequest):
                    reply.calls.append(piece)
                elif not isinstance(piece, str):
                    if isinstance(piece, UsageEvent):
                        reply.usage = Usage(piece.input_tokens, piece.output_tokens)
                    yield piece
                elif shown := parser.feed(piece):
                    reply.text += shown
                    yield shown
        rest, calls = parser.end()
        reply.calls += calls
        if rest:
            reply.text += rest
            yield rest
        self._set_calls(reply)

    def _next_model(self) -> Model:
        """Return the model with the client's options. A required tool is not required again once a tool was called."""
        options = self._options
        if options == _NO_OPTIONS or not isinstance(self._model, OpenAIModel):
            return self._model
        has_called = any(message.tool_calls for message in self.messages[self._initial_count :])
        return self._model.with_options(options.for_call(has_tools=bool(self._specs), has_called=has_called))

    def _set_calls(self, reply: _ModelReply) -> None:
        """Give the calls of a reply ids that are new in the conversation: some servers number them from one."""
        reply.calls = reply.calls[:_MAX_CALLS_PER_REPLY]
        for index, call in enumerate(reply.calls):
            if call.call_id in self._call_ids:
                reply.calls[index] = structs.replace(call, call_id=f"call_{new_id()}")
            self._call_ids.add(reply.calls[index].call_id)

    async def _run_tools(self, calls: Sequence[_LoopCall]) -> AsyncGenerator[Event]:
        """Run calls in parallel. Yield results as the calls end; add their messages in the order of the requests."""
        room = asyncio.Semaphore(_MAX_PARALLEL_TOOLS)
        running = {asyncio.create_task(self._run_tool(call, room)): call for call in calls}
        outcomes: dict[str, ToolOutcome] = {}
        try:
            waiting = set(running)
            while waiting:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    call, outcome = running[task], task.result()
                    outcomes[call.call_id] = outcome
                    yield ToolResultEvent(call.call_id, call.tool, outcome.success, outcome.result, outcome.ms)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.messages += [Message("tool", outcomes[call.call_id].text, call_id=call.call_id) for call in calls]

    async def _run_tool(self, call: _LoopCall, room: asyncio.Semaphore) -> ToolOutcome:
        tool = self._tools.get(call.tool)
        if call.tool in self._client_tools and call.args is not None:
            # The limit of parallel tools does not count these: the client does the work.
            return await self._run_once(call, lambda: run_client_tool(call.call_id, call.tool, call.args or {}))
        if tool is None:
            available = ", ".join([*self._tools, *self._client_tools]) or "none"
            error = f"Error: there is no tool {call.tool[:80]!r}; available tools: {available}"
            if call.tool in self._client_tools:
                error = f"Error: the arguments of {call.tool} are wrong: they are not a JSON object"
            return ToolOutcome(False, error, error, 0.0)
        if call.args is not None and tool.requires_approval(call.args):
            request = ApprovalRequestEvent(call.call_id, call.tool, call.args, editable=tool.editable)
            decision = await self._decide(request)
            if not decision.approved:
                return ToolOutcome(False, decision.denial, decision.denial, 0.0)
            call = structs.replace(call, args=decision.args)
        async with room:
            return await self._run_once(call, lambda: run_tool(tool, call.args, call_id=call.call_id))

    async def _run_once(self, call: _LoopCall, run: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run a tool, or take its outcome from the journal if it had finished before a crash."""
        if self._journal is None:
            return await run()
        try:
            step = await self._journal.begin_tool(self._place, call.call_id, call.tool, call.args)
        except ToolDeniedError as denied:
            return ToolOutcome(False, str(denied), str(denied), 0.0)
        with step:
            if not step.is_live:
                return msgspec.convert(step.result, ToolOutcome)
            outcome = await run()
            step.finish(msgspec.to_builtins(outcome))
        return outcome
