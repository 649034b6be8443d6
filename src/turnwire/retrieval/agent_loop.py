"""The agent loop: a model searches with tools until it has what it needs.

Its steps are told through the gathering; what it writes is yielded, for those who want its own words.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from turnwire.core.events import ReasoningEvent, UsageEvent
from turnwire.core.turns import Message, ToolRequest
from turnwire.models.contract import Model, ToolWish
from turnwire.retrieval.gathering import Gathering
from turnwire.retrieval.prompts import spoken
from turnwire.retrieval.tools import TOOLS, ToolBox, arguments_of

_MOST_CALLS = 6
_MOST_TOOLS_AT_ONCE = 8


class AgentLoop:
    """`has_concluded` is true once the model has had the last word, and not a tool."""

    def __init__(
        self, model: Model, instructions: str, gathering: Gathering, history: Sequence[Message], limit: int
    ) -> None:
        self.has_concluded = False
        self._model = model
        self._instructions = instructions
        self._gathering = gathering
        self._history = spoken(history)
        self._tools = ToolBox(gathering, limit)

    async def run(self, question: str) -> AsyncIterator[str]:
        """Yields the model's words, once there is evidence for them. Raises ModelError."""
        messages = [*self._history, Message("user", question)]
        for call in range(1, _MOST_CALLS + 1):
            offered = TOOLS if call < _MOST_CALLS else ()
            wishes: list[ToolWish] = []
            text = ""
            stream = self._model.stream(self._instructions, messages, tools=offered)
            try:
                async for piece in stream:
                    if isinstance(piece, str):
                        text += piece
                        if len(self._gathering.book):
                            yield piece
                    elif isinstance(piece, ToolWish):
                        wishes.append(piece)
                    else:
                        assert isinstance(piece, ReasoningEvent | UsageEvent)
                        await self._gathering.tell(piece)
            finally:
                await stream.aclose()
            if not wishes:
                self.has_concluded = bool(text.strip())
                return
            if text and len(self._gathering.book):
                yield "\n\n"  # It said something on the way; what comes next is another thought.
            messages += await self._run_tools(text, wishes[:_MOST_TOOLS_AT_ONCE])

    async def _run_tools(self, text: str, wishes: list[ToolWish]) -> list[Message]:
        requests = tuple(ToolRequest(wish.call_id, wish.tool, arguments_of(wish) or {}) for wish in wishes)
        told = await asyncio.gather(*(self._tools.run(wish) for wish in wishes))
        results = [Message("tool", text, call_id=wish.call_id) for wish, text in zip(wishes, told, strict=True)]
        return [Message("assistant", text, tool_calls=requests), *results]
