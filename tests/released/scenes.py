"""Fixed turns: one list of events each, and the agent that yields them.

A scene goes through the server as any agent's turn does, so that its log is written by Turnwire itself.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from turnwire import AgentError, Turn, WaitForApproval
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    CustomEvent,
    ErrorEvent,
    HandoffEvent,
    Hit,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)

PATIENCE = 120.0


@dataclass(frozen=True)
class Seen:
    """A pause until the live reader has received this text."""

    text: str


class Hang:
    """A pause that only a cancellation ends."""


@dataclass
class Stage:
    """State that the agent of a scene shares with the test that reads the turn."""

    scene: str = "plain"
    is_read: bool = False
    """Whether a reader follows the turn live, so that `Seen` pauses are waited for."""
    turn_id: str = ""
    received: bytearray = field(default_factory=bytearray)
    hanging: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    waiting: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    def begin(self, scene: str, *, is_read: bool) -> None:
        self.scene, self.is_read = scene, is_read
        self.received.clear()
        for queue in (self.hanging, self.waiting):
            while not queue.empty():
                queue.get_nowait()

    async def answer(self, turn: Turn) -> AsyncIterator[Any]:
        self.turn_id = turn.id
        steps = SCENES[self.scene]
        if turn.resumption is not None:
            steps = DECIDED[self.scene]
        for step in steps:
            if isinstance(step, Seen):
                await self._until_received(step.text)
            elif isinstance(step, Hang):
                self.hanging.put_nowait(turn.id)
                await asyncio.Event().wait()
            elif isinstance(step, WaitForApproval):
                self.waiting.put_nowait(turn.id)
                raise step.with_traceback(None)
            elif isinstance(step, Exception):
                raise step.with_traceback(None)
            else:
                yield step

    async def _until_received(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.is_read and text.encode() not in self.received:  # noqa: ASYNC110 - bytes come without a signal
                await asyncio.sleep(0.005)


_HIT = Hit(1, "d1", "d1:1", "Tides", "https://example.org/tides", 2, "The tide turns at noon.", 0.5, "Noon")
_OTHER_HIT = Hit(2, "d2")
_CITATION = CitationEvent(
    1, "d1", "d1:1", "Tides", "https://example.org/tides", 2, "turns at noon", "search", 0.5, 9, 22, 0, 10, "Noon"
)
_REQUEST = ApprovalRequestEvent("call-1", "pay", {"amount": 5, "to": "Ann"}, "it costs money")
_SECOND_REQUEST = ApprovalRequestEvent("call-2", "mail", {"to": "Ann"})

SCENES: dict[str, list[Any]] = {
    "plain": ["Good ", "morning", "."],
    "empty": [],
    "every_event": [
        StatusEvent("reading"),
        HandoffEvent("writer"),
        SearchEvent("search-1", "started", "search", "tides", 1),
        SearchEvent("search-1", "finished", "search", "tides", 1, (_HIT, _OTHER_HIT), 1.5),
        ReviewEvent(
            "review-1", 1, "rejected", "more", (1,), (2,), ("dates",), ("tide tables",), 2, ("noon",), "coverage"
        ),
        ReasoningEvent("Let me see."),
        ToolCallEvent("call-1", "find", {"q": "x", "deep": {"n": [1, 2.5, None, True]}}),
        ToolProgressEvent("call-1", "half", 0.5, {"n": 1}),
        ToolResultEvent("call-1", "find", True, {"found": [1, "two"]}, 2.5),
        TokenEvent("Noon"),
        " it is. [1]",
        _CITATION,
        CustomEvent("chart", {"x": [1, 2]}),
        UsageEvent("model-1", 10, 20, 3, 4),
        ResponseEvent("", (_CITATION,), "synthesis", ("find",), Usage(10, 20, 3, 4), {"model_ms": 5.0}),
    ],
    "reasoning_and_tools": [
        ReasoningEvent("First "),
        ReasoningEvent("I look it up."),
        "Wait. ",
        ToolCallEvent("call-1", "find", {"q": "x"}),
        ToolCallEvent("call-2", "read", {}),
        ToolProgressEvent("call-1", "a third", 0.33),
        ToolProgressEvent("call-1", None, 1.0),
        ToolProgressEvent("call-2", "reading", None, ["a", 1]),
        ToolResultEvent("call-2", "read", False, "no such file", 1.0),
        ToolResultEvent("call-1", "find", True, "found it", 7.25),
        ReasoningEvent("Now I know."),
        "Here ",
        "it is.",
    ],
    "search_and_citations": [
        StatusEvent("Searching"),
        SearchEvent("search-1", "started", "search_documents", "When does the tide turn?"),
        SearchEvent("search-2", "started", "search_documents", "tide"),
        SearchEvent("search-2", "failed", "search_documents", "tide", ms=3.0),
        SearchEvent("search-1", "finished", "search_documents", "When does the tide turn?", None, (_HIT,), 4.0),
        ReviewEvent("review-1", 1, "rejected", "not enough", (), (1,), ("turn",), ("turn of the tide",), 1),
        SearchEvent("search-3", "started", "search_documents", "turn of the tide"),
        SearchEvent("search-3", "finished", "search_documents", "turn of the tide", None, (), 1.0),
        ReviewEvent("review-2", 2, "approved", None, (1,)),
        "At noon [1]",
        ".",
        _CITATION,
        CitationEvent(2, "d2"),
        ResponseEvent("", mode="extractive"),
    ],
    "approval_allowed": [
        "First ",
        WaitForApproval([_REQUEST], b"checkpoint"),
    ],
    "approval_denied": [
        "First ",
        ToolCallEvent("call-1", "pay", {"amount": 5, "to": "Ann"}),
        WaitForApproval([_REQUEST, _SECOND_REQUEST]),
    ],
    "approval_cancelled": [
        "First ",
        WaitForApproval([_REQUEST]),
    ],
    "restart": [
        "Kept. ",
        ToolCallEvent("call-1", "find", {"q": "x"}),
        ToolResultEvent("call-1", "find", True, "found it", 1.0),
        ToolCallEvent("call-2", "find", {"q": "y"}),
        # The last before the restart: whoever has it has all that the restart makes void.
        "Void",
        Seen("Void"),
        RestartEvent(5, "worker_lost"),
        "Again ",
        "and whole.",
    ],
    "failure": [
        "Half an ",
        ToolCallEvent("call-1", "find", {"q": "x"}),
        ErrorEvent("The well has run dry.", "well_dry", True),
    ],
    "failure_at_once": [AgentError("No water.", code="no_water")],
    "exception": ["Half an ", ZeroDivisionError("a secret of the server")],
    "cancel": ["Half an ", ToolCallEvent("call-1", "find", {"q": "x"}), "answer", Hang()],
    "sub_agents": [
        "Outside. ",
        HandoffEvent("scout"),
        StatusEvent("looking", agent_path=("scout",)),
        ReasoningEvent("Where?", agent_path=("scout",)),
        ToolCallEvent("call-1", "find", {"q": "x"}, agent_path=("scout", "reader")),
        ToolProgressEvent("call-1", "half", 0.5, agent_path=("scout", "reader")),
        ToolResultEvent("call-1", "find", True, "found it", 1.0, agent_path=("scout", "reader")),
        TokenEvent("Inside. ", agent_path=("scout",)),
        UsageEvent("small", 1, 2, agent_path=("scout",)),
        CustomEvent("map", [1], agent_path=("scout",)),
        HandoffEvent("writer"),
        "Outside again.",
        UsageEvent("large", 5, 7, 1, 2),
    ],
    "unicode": [
        'Quotes " and \\ and / and <b>&amp;</b>\n\n',
        "e\u0301 é 日本 😀 \u2028 \u2029 \ufeff\r\n\t",
        "\x00\x1b\x1d\x1e\x7f\x85",
        "a lone half: \ud83d",
        ToolCallEvent("call-ü", "löschen", {"schlüssel": "wert\u2028\x1e"}),
        ToolResultEvent("call-ü", "löschen", True, "data: x\n\nevent: y", 1.0),
        CustomEvent("größe", {"日": "本\x1d"}),
    ],
    "custom_and_usage": [
        CustomEvent("ping"),
        CustomEvent("numbers", [1, -2.5, 1e21, True, None]),
        UsageEvent(),
        UsageEvent("model-1", 10, 20),
        "Counted.",
        UsageEvent("model-2", 1, 2, 3, 4),
    ],
    "tail": ["Half an ", Hang()],
}
DECIDED: dict[str, list[Any]] = {
    "approval_allowed": [
        ToolCallEvent("call-1", "pay", {"amount": 5, "to": "Ann"}),
        ToolResultEvent("call-1", "pay", True, "paid", 1.0),
        "then paid.",
    ],
    "approval_denied": [
        ToolResultEvent("call-1", "pay", False, "denied", 1.0),
        ToolResultEvent("call-2", "mail", False, "denied", 1.0),
        "then kept.",
    ],
}
DECISIONS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "approval_allowed": [("call-1", {"approved": True, "reason": "fine"})],
    "approval_denied": [("call-1", {"approved": False, "reason": "too dear"}), ("call-2", {"approved": False})],
}
"""The decisions that are posted for a turn that waits, in this order; a scene without any is cancelled."""
