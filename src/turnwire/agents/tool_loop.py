"""A model with tools: it is asked, its tools are run, and it is asked again, until it has answered."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from msgspec import structs

from turnwire.agents.spoken_calls import SpokenCalls
from turnwire.core.errors import AgentError
from turnwire.core.events import Event, ToolCallEvent, ToolResultEvent
from turnwire.core.ids import new_id
from turnwire.core.turns import Message, ToolRequest
from turnwire.models.contract import Model, ToolSpec, ToolWish
from turnwire.tools import Tool, ToolOutcome, read_arguments, run_tool

_MOST_CALLS_IN_A_REPLY = 64
_MOST_TOOLS_AT_ONCE = 8


class ToolLoop:
    """One run. `messages` is the conversation, to which the run adds what is said in it."""

    def __init__(
        self, model: Model, instructions: str, tools: Mapping[str, Tool], messages: list[Message], max_steps: int
    ) -> None:
        self.messages = messages
        self._model = model
        self._instructions = instructions
        self._tools = tools
        self._specs = [ToolSpec(tool.name, tool.description, tool.parameters) for tool in tools.values()]
        self._max_steps = max_steps
        self._call_ids = {call.call_id for message in messages for call in message.tool_calls}
        self._said = ""
        self._wishes: list[ToolWish] = []

    async def run(self) -> AsyncGenerator[Event | str]:
        """Raises ModelError, and AgentError `max_turns` when the model is never done."""
        has_spoken = False
        for step in range(1, self._max_steps + 1):
            async with aclosing(self._ask()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str) and has_spoken:
                        has_spoken = False
                        yield "\n\n"  # It said something before its tools; what comes now is another thought.
                    yield piece
            requests = self._requests()
            self.messages.append(Message("assistant", self._said, tool_calls=requests))
            if not requests:
                return
            if step == self._max_steps:
                break  # Nobody would read what the tools give.
            has_spoken = has_spoken or bool(self._said)
            async with aclosing(self._run_tools(requests)) as results:
                async for event in results:
                    yield event
        raise AgentError(
            f"The model was asked {self._max_steps} times and still wants to call tools; ask for less at once.",
            code="max_turns",
        )

    async def _ask(self) -> AsyncGenerator[Event | str]:
        """One answer of the model, into `_said` and `_wishes`."""
        self._said, self._wishes = "", []
        spoken = SpokenCalls(self._tools)
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

    async def _run_tools(self, requests: Sequence[ToolRequest]) -> AsyncGenerator[Event]:
        """All at once; each is told the moment it ends, and the model in the order it asked."""
        for request in requests:
            yield ToolCallEvent(request.call_id, request.tool, request.args)
        room = asyncio.Semaphore(_MOST_TOOLS_AT_ONCE)
        running = {asyncio.create_task(self._run_tool(wish, room)): wish for wish in self._wishes}
        outcomes: dict[str, ToolOutcome] = {}
        try:
            waiting = set(running)
            while waiting:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    wish, outcome = running[task], task.result()
                    outcomes[wish.call_id] = outcome
                    yield ToolResultEvent(wish.call_id, wish.tool, outcome.success, outcome.result, outcome.ms)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.messages += [Message("tool", outcomes[one.call_id].text, call_id=one.call_id) for one in requests]

    async def _run_tool(self, wish: ToolWish, room: asyncio.Semaphore) -> ToolOutcome:
        tool = self._tools.get(wish.tool)
        if tool is None:
            there = ", ".join(self._tools) or "none"
            why = f"Error: there is no tool {wish.tool[:80]!r}; there is {there}"
            return ToolOutcome(False, why, why, 0.0)
        async with room:
            return await run_tool(tool, read_arguments(wish.arguments), call_id=wish.call_id)
