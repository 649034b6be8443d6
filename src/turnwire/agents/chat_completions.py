"""An agent for any OpenAI-compatible server: a model, instructions, and plain functions as its tools.

    agent = ChatCompletionsAgent("qwen3:8b", base_url="http://localhost:11434/v1", tools=[weather])

It needs no agent SDK. With `api="responses"` it speaks the Responses API.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from turnwire.agents.text_tool_calls import TextToolCalls
from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.contracts import OnCrash
from turnwire.core.errors import AgentError
from turnwire.core.events import ApprovalRequestEvent, Event, ToolCallEvent, ToolResultEvent
from turnwire.core.ids import new_id
from turnwire.core.turns import Message, ToolRequest, Turn
from turnwire.models.contract import Model, ToolSpec, ToolWish
from turnwire.models.openai_client import OpenAIModel
from turnwire.tools import Tool, ToolOutcome, Toolset, open_toolsets, read_arguments, run_tool
from turnwire.tools.declaration import Function, as_tool

# A model with tools: it is asked, its tools are run, and it is asked again, until it has answered.


_MOST_CALLS_IN_A_REPLY = 64
_MOST_TOOLS_AT_ONCE = 8
_PARAGRAPH = "\n\n"


class _LoopCall(Struct, frozen=True):
    """`args` is None if they are not JSON; `denial` is there if a person has said no."""

    call_id: str
    tool: str
    args: dict[str, Any] | None
    is_decided: bool = False
    denial: str | None = None


class _LoopCheckpoint(Struct, frozen=True):
    """What the run has added to the conversation, and how often the model was asked."""

    said: list[Message]
    step: int
    has_spoken: bool


class ToolLoop:
    """One run. `messages` is the conversation, to which the run adds what is said in it."""

    def __init__(
        self, model: Model, instructions: str, tools: Mapping[str, Tool], messages: list[Message], max_steps: int
    ) -> None:
        self.messages = messages
        self._given = len(messages)
        self._model = model
        self._instructions = instructions
        self._tools = tools
        self._specs = [ToolSpec(tool.name, tool.description, tool.parameters) for tool in tools.values()]
        self._max_steps = max_steps
        self._call_ids = {call.call_id for message in messages for call in message.tool_calls}
        self._said = ""
        self._wishes: list[ToolWish] = []
        self._step = 0
        self._has_spoken = False

    async def run(
        self, resumption: Resumption | None = None, progress: Sequence[Message] = ()
    ) -> AsyncGenerator[Event | str]:
        """Raises ModelError, AgentError `max_turns` when the model is never done, and WaitForApproval.

        With `progress` it goes on from there, and from a checkpoint otherwise.
        """
        calls = self._take_up(progress, resumption) if progress else self._return_to(resumption)
        while True:
            async with aclosing(self._call(calls)) as results:
                async for event in results:
                    yield event
            if self._step >= self._max_steps:
                break
            self._step += 1
            async with aclosing(self._ask()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str) and self._has_spoken:
                        self._has_spoken = False
                        yield _PARAGRAPH  # It said something before its tools; what comes now is another thought.
                    yield piece
            requests = self._requests()
            self.messages.append(Message("assistant", self._said, tool_calls=requests))
            if not requests:
                return
            if self._step == self._max_steps:
                break  # Nobody would read what the tools give.
            self._has_spoken = self._has_spoken or bool(self._said)
            for request in requests:
                yield ToolCallEvent(request.call_id, request.tool, request.args)
            calls = [_LoopCall(wish.call_id, wish.tool, read_arguments(wish.arguments)) for wish in self._wishes]
        raise AgentError(
            f"The model was asked {self._max_steps} times and still wants to call tools; ask for less at once.",
            code="max_turns",
        )

    def _return_to(self, resumption: Resumption | None) -> list[_LoopCall]:
        """Goes back to where it waited. The calls that were decided about."""
        if resumption is None:
            return []
        left = _read_checkpoint(resumption.checkpoint)
        self.messages += left.said
        self._has_spoken, self._step = left.has_spoken, left.step
        return list(map(_decided_call, resumption.decisions))

    def _take_up(self, progress: Sequence[Message], resumption: Resumption | None) -> list[_LoopCall]:
        """Goes back to the last step that is known. The calls that have no result."""
        for message in progress:
            said = message.content
            if message.role == "assistant":
                # The empty line is the loop's, not the model's.
                said = said.removeprefix(_PARAGRAPH) if self._has_spoken else said
                self._has_spoken = self._has_spoken or bool(said)
                self._step += bool(message.tool_calls)
            self.messages.append(structs.replace(message, content=said))
        self._call_ids |= {call.call_id for message in progress for call in message.tool_calls}
        ended = {message.call_id for message in progress}
        decided = {decision.call_id: decision for decision in resumption.decisions} if resumption else {}
        return [
            _decided_call(decided[call.call_id])
            if call.call_id in decided
            else _LoopCall(call.call_id, call.tool, call.args)
            for message in progress
            for call in message.tool_calls
            if call.call_id not in ended
        ]

    async def _call(self, calls: Sequence[_LoopCall]) -> AsyncGenerator[Event]:
        """Runs the calls that need nobody, then waits for those that do."""
        asked = [call for call in calls if self._needs_approval(call)]
        async with aclosing(self._run_tools([call for call in calls if call not in asked])) as results:
            async for event in results:
                yield event
        if asked:
            checkpoint = _LoopCheckpoint(self.messages[self._given :], self._step, self._has_spoken)
            requests = [ApprovalRequestEvent(call.call_id, call.tool, call.args or {}) for call in asked]
            raise WaitForApproval(requests, _write_checkpoint(checkpoint))

    async def _ask(self) -> AsyncGenerator[Event | str]:
        """One answer of the model, into `_said` and `_wishes`."""
        self._said, self._wishes = "", []
        spoken = TextToolCalls(self._tools)
        async with aclosing(self._model.stream(self._instructions, self.messages, tools=self._specs)) as stream:
            async for piece in stream:
                if isinstance(piece, ToolWish):
                    self._wishes.append(piece)
                elif not isinstance(piece, str):
                    yield piece
                elif shown := spoken.feed(piece):
                    self._said += shown
                    yield shown
        rest, wishes = spoken.end()
        self._wishes += wishes
        if rest:
            self._said += rest
            yield rest

    def _requests(self) -> tuple[ToolRequest, ...]:
        """The calls of the last answer. Some servers count their ids from one in every answer; here each is new."""
        wishes = self._wishes[:_MOST_CALLS_IN_A_REPLY]
        for index, wish in enumerate(wishes):
            if wish.call_id in self._call_ids:
                wishes[index] = structs.replace(wish, call_id=f"call_{new_id()}")
            self._call_ids.add(wishes[index].call_id)
        self._wishes = wishes
        return tuple(ToolRequest(wish.call_id, wish.tool, read_arguments(wish.arguments) or {}) for wish in wishes)

    def _needs_approval(self, call: _LoopCall) -> bool:
        tool = self._tools.get(call.tool)
        return tool is not None and call.args is not None and not call.is_decided and tool.requires_approval(call.args)

    async def _run_tools(self, calls: Sequence[_LoopCall]) -> AsyncGenerator[Event]:
        """All at once; each is told the moment it ends, and the model in the order it asked."""
        room = asyncio.Semaphore(_MOST_TOOLS_AT_ONCE)
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
        self.messages += [Message("tool", outcomes[one.call_id].text, call_id=one.call_id) for one in calls]

    async def _run_tool(self, call: _LoopCall, room: asyncio.Semaphore) -> ToolOutcome:
        if call.denial is not None:
            return ToolOutcome(False, call.denial, call.denial, 0.0)
        tool = self._tools.get(call.tool)
        if tool is None:
            there = ", ".join(self._tools) or "none"
            why = f"Error: there is no tool {call.tool[:80]!r}; there is {there}"
            return ToolOutcome(False, why, why, 0.0)
        async with room:
            return await run_tool(tool, call.args, call_id=call.call_id)


def _decided_call(decision: Decision) -> _LoopCall:
    denial = None if decision.approved else decision.denial
    return _LoopCall(decision.call_id, decision.tool, decision.args, is_decided=True, denial=denial)


def _write_checkpoint(checkpoint: _LoopCheckpoint) -> bytes:
    # The standard library's JSON, because a model may write half a surrogate pair.
    return json.dumps(msgspec.to_builtins(checkpoint)).encode()


def _read_checkpoint(written: bytes) -> _LoopCheckpoint:
    return msgspec.convert(json.loads(written), _LoopCheckpoint)


Approve = Callable[[ApprovalRequestEvent], Awaitable[bool]]
OnEvent = Callable[[str, dict[str, Any]], Awaitable[None]]


class ChatCompletionsAgent:
    """`max_steps` is how often the model may be asked in one turn. With `on_crash="resume"`, a turn whose worker was
    lost goes on from its last finished step. What follows is about a model given by its name.

    Among `tools` may be toolsets such as `McpServer`: they are opened by the first turn and closed with the agent.

    Raises ModelUnusableError, TypeError for a function that cannot be a tool, and ValueError for two of one name.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str = "",
        tools: Iterable[Tool | Toolset | Function] = (),
        max_steps: int = 20,
        on_crash: OnCrash = "close",
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
        self.tools: dict[str, Tool] = {}
        self.toolsets: list[Toolset] = []
        for given in tools:
            if isinstance(given, Toolset):
                self.toolsets.append(given)
                continue
            tool = as_tool(given)
            if tool.name in self.tools:
                raise ValueError(f"two tools are called {tool.name!r}; give one another name: @tool(name=...)")
            self.tools[tool.name] = tool

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        messages = [*turn.history, Message("user", turn.message)]
        async with aclosing(self._run(messages, turn.resumption, turn.progress)) as events:
            async for event in events:
                yield event

    def repeats(self, tool: str) -> bool:
        """Whether a call that broke off may be run again. What a toolset says of its tools is not believed."""
        return tool in self.tools and self.tools[tool].idempotent

    async def agent_turn(
        self,
        session: list[Message],
        message: str,
        *,
        on_event: OnEvent | None = None,
        approve: Approve | None = None,
    ) -> str:
        """One turn with no server around it: answers the message, and adds the exchange to `session`.

        `on_event(event_type, data)` is awaited before each tool call (`tool_call`: tool, args), after each
        (`tool_result`: tool, success, result) and with the answer (`response`: content). `approve(request)` is awaited
        for tools that need it; without it they are denied. Raises AgentError, and what the two raise; the session is
        then as it was.
        """
        content = ""
        resumption: Resumption | None = None
        while True:
            messages = [*session, Message("user", message)]
            try:
                async with aclosing(self._run(messages, resumption)) as events:
                    async for event in events:
                        if isinstance(event, str):
                            content += event
                        elif on_event is not None:
                            await _tell(on_event, event)
                break
            except WaitForApproval as waits:
                decisions = [await _decide(request, approve) for request in waits.requests]
                resumption = Resumption(tuple(decisions), waits.checkpoint)
        session[:] = messages
        if on_event is not None:
            await on_event("response", {"content": content})
        return content

    async def close(self) -> None:
        """Closes the connections to the model's server, and the toolsets."""
        await asyncio.gather(self.model.close(), *(toolset.close() for toolset in self.toolsets))

    async def _run(
        self, messages: list[Message], resumption: Resumption | None, progress: Sequence[Message] = ()
    ) -> AsyncGenerator[Event | str]:
        """Answers the last message; `messages` grows by what is said."""
        tools = await open_toolsets(self.tools, self.toolsets)
        loop = ToolLoop(self.model, self.instructions, tools, messages, self.max_steps)
        async with aclosing(loop.run(resumption, progress)) as events:
            async for event in events:
                yield event


async def _decide(request: ApprovalRequestEvent, approve: Approve | None) -> Decision:
    approved = approve is not None and await approve(request)
    reason = None if approve is not None else "there is nobody here who could allow it"
    return Decision(call_id=request.call_id, tool=request.tool, args=request.args, approved=approved, reason=reason)


async def _tell(on_event: OnEvent, event: Event) -> None:
    match event:
        case ToolCallEvent():
            await on_event("tool_call", {"tool": event.tool, "args": event.args, "call_id": event.call_id})
        case ToolResultEvent():
            told = {"tool": event.tool, "success": event.success, "result": event.result, "call_id": event.call_id}
            await on_event("tool_result", told)
        case _:
            pass
