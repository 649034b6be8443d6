"""A typical log of an answer from documents: mostly tokens, and most other kinds of events."""

from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import (
    CitationEvent,
    DoneEvent,
    Event,
    Hit,
    MessageEvent,
    ResponseEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)

SESSION, TURN = "01a1e2fd-d68f-7000-8bed-33d61f785931", "01a1e2fd-d68f-7001-bd56-42fac868601b"
QUOTE = "The log of a turn is written before anything of it is sent, so that a reader can come back to it."


def typical_log(tokens: tuple[str, ...]) -> list[LoggedEvent]:
    events = [*_before(), *map(TokenEvent, tokens), *_after("".join(tokens))]
    return [log_event(event, position, 1) for position, event in enumerate(events, 1)]


def as_stored(log: list[LoggedEvent]) -> list[LoggedEvent]:
    """Return the log as a store reads it from disk: not decoded."""
    return [LoggedEvent(logged.position, logged.epoch, logged.at, logged.body) for logged in log]


def _before() -> list[Event]:
    hits = tuple(Hit(n, f"doc-{n}", title="Concepts", text=QUOTE, score=0.5) for n in range(1, 9))
    query = "when is the log written"
    return [
        SessionEvent(SESSION, TURN, "default"),
        MessageEvent("When is the log written?", "local", "http"),
        StatusEvent("Searching"),
        SearchEvent("search-1", "started", "documents", query),
        SearchEvent("search-1", "finished", "documents", query, hits=hits, ms=2.5),
        ReviewEvent("review-1", 1, "approved", kept=(1, 2, 3), dropped=(4, 5, 6, 7, 8), matched=("log", "written")),
        ToolCallEvent("call-1", "clock", {"zone": "Europe/Berlin"}),
        ToolResultEvent("call-1", "clock", True, {"time": "08:30"}, 1.0),
    ]


def _after(answer: str) -> list[Event]:
    citations = tuple(
        CitationEvent(n, f"doc-{n}", title="Concepts", supporting_quote=QUOTE, answer_start=0, answer_end=12)
        for n in (1, 2, 3)
    )
    usage = Usage(input_tokens=1200, output_tokens=1000)
    return [
        *citations,
        UsageEvent("bench", 1200, 1000),
        ResponseEvent(answer, citations, "documents", ("clock",), usage, {"total_ms": 900.0}),
        DoneEvent("completed", SESSION, TURN),
    ]
