"""A scripted agent that plays every kind of turn a client may meet; the message names the scene."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import approval, ask, call_client_tool
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    Event,
    ReasoningEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import Turn

RICH = "Zürich\u2028 is 🌞 [1], [2].\n"
"""A text with a Unicode line separator and a character outside the basic plane."""


async def play(turn: Turn) -> AsyncIterator[Event | str]:
    async for line in _SCENES[turn.message.partition(" ")[0]](turn):
        yield line


async def _plain(turn: Turn) -> AsyncIterator[Event | str]:
    yield "Plain "
    yield "answer."


async def _wait(turn: Turn) -> AsyncIterator[Event | str]:
    yield "It begins "
    await asyncio.Event().wait()  # Until it is stopped.


async def _rich(turn: Turn) -> AsyncIterator[Event | str]:
    yield StatusEvent("thinking")
    yield ReasoningEvent("Where is it ")
    yield ReasoningEvent("sunny?")
    yield SearchEvent("s1", "started", "search", query="sun")
    yield SearchEvent("s1", "finished", "search", query="sun", ms=3)
    yield ToolCallEvent("c1", "weather", {"city": "Zürich"})
    yield ToolProgressEvent("c1", "looking up", 0.5)
    yield TokenEvent("to myself", agent_path=("helper",))
    yield ToolResultEvent("c1", "weather", True, {"sky": "sunny"}, 12)
    yield ToolCallEvent("c2", "weather", {"city": "Atlantis"})
    yield ToolResultEvent("c2", "weather", False, "no such city", 1)
    for piece in RICH:
        yield piece
    yield CitationEvent(1, "doc-1", "chunk-1", title="The sun", url="https://example.org/sun", supporting_quote="sunny")
    yield CitationEvent(2, "notes/sun.md", "chunk-2", title="Notes")
    yield UsageEvent("scripted", input_tokens=11, output_tokens=7)


async def _pay(turn: Turn) -> AsyncIterator[Event | str]:
    decision = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 40}, "it costs money"))
    if decision.approved:
        yield ToolResultEvent("c1", "pay", True, "receipt 1")
    yield "Paid." if decision.approved else decision.denial


async def _fail(turn: Turn) -> AsyncIterator[Event | str]:
    yield "It begins "
    raise AgentError("the model is away", code="model_away")


_SCENES: dict[str, Any] = {"plain": _plain, "rich": _rich, "pay": _pay, "fail": _fail, "wait": _wait}


class TwoWayAgent:
    """An agent that waits for its client: for tools that the client runs, and for the answer to a question."""

    on_crash = "resume"
    takes_client_tools = True
    tool_names: ClassVar = ("ledger",)

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        yield "Wait. "
        match turn.message:
            case "locate":
                place = await call_client_tool("locate", {"exact": True})
                yield f"You are in {place}."
            case "mixed":
                yield ToolCallEvent("s1", "ledger", {"year": 2026})
                yield ToolResultEvent("s1", "ledger", True, "3 entries")
                places = await asyncio.gather(call_client_tool("locate", {}), call_client_tool("clock", {}))
                yield f"You are in {places[0]} at {places[1]}."
                again = await call_client_tool("locate", {"again": True})
                yield f" Still in {again}."
            case "colour":
                yield f"You want {await ask('Which colour?', COLOUR)}."
            case _:
                yield "Plain."


COLOUR = {"type": "string", "enum": ["red", "blue"]}
CLIENT_TOOLS = [
    {"name": "locate", "description": "Find the user.", "parameters": {"type": "object", "properties": {}}},
    {"name": "clock", "description": "Read the clock.", "parameters": {"type": "object", "properties": {}}},
]
