"""An agent for any OpenAI-compatible server: a model, instructions, and plain functions as its tools.

    agent = ChatCompletionsAgent("qwen3:8b", base_url="http://localhost:11434/v1", tools=[weather])

It needs no agent SDK. With `api="responses"` it speaks the Responses API.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Literal

from turnwire.agents.tool_loop import ToolLoop
from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.contracts import OnCrash
from turnwire.core.events import ApprovalRequestEvent, Event, ToolCallEvent, ToolResultEvent
from turnwire.core.turns import Message, Turn
from turnwire.models.contract import Model
from turnwire.models.openai_client import OpenAIModel
from turnwire.tools import Tool, Toolset, open_toolsets
from turnwire.tools.declaring import Function, as_tool

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
