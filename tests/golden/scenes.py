"""Three fixed logs that every wire encodes: a whole answer, a turn that waits and goes on, and a restarted one."""

from collections.abc import Sequence

from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    Hit,
    InputEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)

_STARTED_AT = 1_700_000_000_000
_HIT = Hit(1, "d1", "d1:1", "Tides", "https://example.org/tides", 2, "The tide turns at noon.", 0.5, "Noon")
_CITATION = CitationEvent(
    1, "d1", "d1:1", "Tides", "https://example.org/tides", 2, "turns at noon", "search", 0.5, 9, 22, 0, 10, "Noon"
)
_SCOUT = ("scout",)

_ANSWER: Sequence[Event] = (
    StatusEvent("reading"),
    SearchEvent("search-1", "started", "search", "tides", 1),
    SearchEvent("search-1", "finished", "search", "tides", 1, (_HIT, Hit(2, "d2")), 1.5),
    ReviewEvent("review-1", 1, "rejected", "more", (1,), (2,), ("dates",), ("tide tables",), 2, ("noon",), "coverage"),
    ReasoningEvent("Let me "),
    ReasoningEvent("see."),
    TokenEvent("Wait. "),
    ToolCallEvent("call-1", "find", {"q": "x", "deep": {"n": [1, 2.5, None, True]}}),
    ToolCallEvent("call-2", "read", {}),
    ToolProgressEvent("call-1", "half", 0.5, {"n": 1}),
    ToolResultEvent("call-2", "read", False, "no such file", 1.0),
    ToolResultEvent("call-1", "find", True, {"found": [1, "two"]}, 2.5),
    InputEvent("Be brief.", "ann", "http", "turn-2"),
    HandoffEvent("scout"),
    ToolCallEvent("call-3", "look", {"q": "y"}, agent_path=_SCOUT),
    ToolResultEvent("call-3", "look", True, "seen", 1.0, agent_path=_SCOUT),
    TokenEvent("Inside. ", agent_path=_SCOUT),
    TokenEvent('At "noon" \\ <b>\n\n'),
    TokenEvent("é 日本 😀 \u2028 \x1d\x1e\x85. [1]"),
    _CITATION,
    CustomEvent("chart", {"x": [1, 2]}),
    UsageEvent("model-1", 10, 20, 3, 4),
    ResponseEvent(
        'Wait. At "noon" \\ <b>\n\né 日本 😀 \u2028 \x1d\x1e\x85. [1]',
        (_CITATION,),
        "synthesis",
        ("find", "read"),
        Usage(10, 20, 3, 4),
        {"model_ms": 5.0},
    ),
    DoneEvent("completed", "session-1", "turn-1"),
)
_WAIT: Sequence[Event] = (
    TokenEvent("First "),
    ToolCallEvent("call-1", "pay", {"amount": 5, "to": "Ann"}),
    ToolCallEvent("call-2", "mail", {"to": "Ann"}),
    ApprovalRequestEvent("call-1", "pay", {"amount": 5, "to": "Ann"}, "it costs money", editable=True),
    ApprovalRequestEvent("call-2", "mail", {"to": "Ann"}),
    ApprovalResponseEvent("call-1", True, "fine", "ann", {"amount": 4, "to": "Ann"}),
    ApprovalResponseEvent("call-2", False, "not today", "ann"),
    ToolResultEvent("call-1", "pay", True, "paid", 1.0),
    ToolResultEvent("call-2", "mail", False, "Denied: not today"),
    QuestionEvent("q-1", "Which colour?", {"type": "string", "enum": ["red", "blue"]}),
    ToolCallEvent("call-4", "locate", {"precise": True}, runs_on="client"),
    ReplyEvent("q-1", "blue", by="ann"),
    ToolResultEvent("call-4", "locate", True, {"town": "Brest"}),
    TokenEvent("then paid."),
    ResponseEvent("First then paid.", tools_used=("pay", "mail", "locate")),
    DoneEvent("completed", "session-1", "turn-1"),
)
_RESTART: Sequence[Event] = (
    TokenEvent("Kept. "),
    ToolCallEvent("call-1", "find", {"q": "x"}),
    ToolResultEvent("call-1", "find", True, "found it", 1.0),
    ReasoningEvent("Void thought."),
    TokenEvent("Void"),
    RestartEvent(5, "worker_lost"),
    TokenEvent("Again "),
    ToolCallEvent("call-2", "find", {"q": "y"}),
    ErrorEvent("The well has run dry.", "well_dry", True),
    DoneEvent("failed", "session-1", "turn-1", "well_dry"),
)


def _log(events: Sequence[Event]) -> list[LoggedEvent]:
    opening = (SessionEvent("session-1", "turn-1", "default"), MessageEvent("Hello", "ann", "http"))
    log = [log_event(event, position, 1) for position, event in enumerate((*opening, *events), 1)]
    for logged in log:
        logged.at = _STARTED_AT + 10 * logged.position
    return log


SCENES = {"answer": _log(_ANSWER), "wait": _log(_WAIT), "restart": _log(_RESTART)}
PAUSES = {"wait": (7, 13)}
"""The positions after which the turn of a scene waits."""
