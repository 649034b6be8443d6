"""Sample texts, events and logs."""

from collections.abc import Sequence

from hypothesis import strategies as st

from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    AttachedFile,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    Hit,
    InputEvent,
    Joined,
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
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnState

# Characters that have broken framings, decoders or line splitters, among ordinary ones.
HOSTILE = (
    '\x00\x07\x08\x0b\x0c\r\n\t\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800\udfff"\\/bfu'
)
texts = st.text(alphabet=st.one_of(st.sampled_from(HOSTILE + "a é日😀"), st.characters(exclude_categories=[])))

# One event of every type, with every field.
FULL: list[Event] = [
    SessionEvent("s1", "t1", "echo", forked_from="t0", forked_at=3),
    MessageEvent(
        "hello",
        "ann",
        "http",
        attachments=(AttachedFile(media_type="image/png", name="cat.png", size=3, digest="0" * 64),),
        metadata={"page": 1},
    ),
    InputEvent("and more", "ann", "http", "t2", "collect"),
    StatusEvent("reading"),
    HandoffEvent("writer"),
    SearchEvent("r1", "finished", "web", "tides", 1, (Hit(1, "d1", "c1", "T", "u", 2, "text", 0.5),), 1.5),
    ReviewEvent("v1", 1, "rejected", "more", (1,), (2,), ("dates",), ("tide tables",), 2, ("noon",), "coverage"),
    ToolCallEvent("c1", "find", {"q": "x"}, "client"),
    ToolProgressEvent("c1", "half", 0.5, {"n": 1}),
    ToolResultEvent("c1", "find", True, [1], 2.5),
    ReasoningEvent("hm"),
    TokenEvent("a"),
    CitationEvent(1, "d1", "c1", "T", "u", 2, "quote", "web", 0.5, 0, 5, 6, 9, "Tides"),
    ApprovalRequestEvent("c1", "delete", {"id": 1}, "it is dangerous", True),
    ApprovalResponseEvent("c1", True, "fine", "ann", {"id": 2}),
    QuestionEvent("q1", "Which one?", {"type": "string"}, "c1"),
    ReplyEvent("q1", "this", True, "too late", "ann"),
    RestartEvent(5, "worker_lost"),
    CustomEvent("chart", {"x": [1, 2]}),
    UsageEvent("m1", 1, 2, 3, 4),
    ResponseEvent(
        "a", (CitationEvent(1, "d1"),), "synthesis", ("find",), Usage(1, 2, 3, 4), {"total_ms": 5.0}, "m1", "it is away"
    ),
    ErrorEvent("it broke", "agent_failed", True),
    DoneEvent("cancelled", "s1", "t1", "requested", Joined("t0", 7)),
]

OPENING = (SessionEvent("s1", "t1", "echo"), MessageEvent("hello", "ann", "http"))


def logged(events: Sequence[Event], began: int = 1_000, apart: int = 10) -> list[LoggedEvent]:
    """Return a whole log whose events are `apart` milliseconds from each other."""
    log = [log_event(event, position, 1) for position, event in enumerate([*OPENING, *events], 1)]
    for event in log:
        event.at = began + (event.position - 2) * apart
    return log


def folded(*events: Event) -> TurnState:
    fold = TurnFold()
    for event in logged(events):
        fold.add(event)
    return fold.state()
