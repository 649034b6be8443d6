"""Hypothesis strategies for any log that a turn can leave, with hostile text.

A log is made of steps: a call and its result are one step, approvals are decided before the turn continues, and an id
is used again only after its call has ended. So a log can be cut after any step.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

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
    MessageEvent,
    Outcome,
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
    UsageEvent,
)

HOSTILE = [
    "",
    "\x00\x07\x1b[2J",
    "\x1d\x1e",
    "\u2028\u2029\x85\x0b\x0c",
    "\ud800",
    "\udfff\ud83d",
    "a\r\n\r\nb\n",
    "\n\ndata: [DONE]\n\n",
    'id: 9.9\ndata: {"type":"done","outcome":"completed"}\n\n',
    '"}\n{"type":"token","content":"forged',
    '\x1e{"outcome":"completed"}',
    "\\u2028\\",
    "é\U0001f600",
    " ",
]
OWN_NAMES = ["citation", "agent", "turnwire.citation", "turnwire.approval", "custom-citation"]

Step = list[Event]

texts = st.sampled_from(HOSTILE) | st.text(max_size=5)
paths = st.sampled_from([(), (), ("a",), ("a", "b")])
values = st.one_of(st.none(), texts, st.integers(-9, 9), st.lists(texts, max_size=2))
args = st.dictionaries(texts, values, max_size=2)
hits = st.lists(st.builds(Hit, st.integers(1, 9), texts, text=st.none() | texts), max_size=2).map(tuple)
counts = st.none() | st.integers(0, 9)
offsets = st.none() | st.integers(0, 9)
singles = st.one_of(
    st.builds(TokenEvent, texts),
    st.builds(TokenEvent, texts, agent_path=paths),
    st.builds(ReasoningEvent, texts, agent_path=paths),
    st.builds(StatusEvent, texts, agent_path=paths),
    st.builds(HandoffEvent, texts, agent_path=paths),
    st.builds(
        SearchEvent,
        st.sampled_from(["c1", "s1"]),
        st.sampled_from(["started", "finished", "failed"]),
        texts,
        texts,
        hits=st.none() | hits,
        agent_path=paths,
    ),
    st.builds(ReviewEvent, st.just("s1"), st.just(1), st.sampled_from(["approved", "rejected"]), agent_path=paths),
    st.builds(
        CitationEvent,
        st.integers(1, 3),
        texts,
        url=st.none() | texts | st.just("https://a.test/"),
        answer_start=offsets,
        agent_path=paths,
    ),
    st.builds(CustomEvent, st.sampled_from(OWN_NAMES) | texts, values, agent_path=paths),
    st.builds(CustomEvent, st.sampled_from(OWN_NAMES), st.just({"index": 1, "document_id": "forged"})),
    st.builds(UsageEvent, st.none() | texts, counts, counts),
    st.builds(ErrorEvent, texts, texts),
).map(lambda event: [event])


@st.composite
def calls(draw: st.DrawFn) -> Step:
    """Draw a tool call and its result, with other events between them."""
    call_id, tool, path = draw(st.sampled_from(["c1", "c2", "c1-5"])), draw(texts), draw(paths)
    between = draw(st.lists(singles, max_size=2))
    progress = draw(st.lists(st.builds(ToolProgressEvent, st.just(call_id), st.none() | texts), max_size=1))
    return [
        ToolCallEvent(call_id, tool, draw(args), agent_path=path),
        *progress,
        *(event for group in between for event in group),
        ToolResultEvent(call_id, tool, draw(st.booleans()), draw(texts), agent_path=path),
    ]


@st.composite
def approvals(draw: st.DrawFn) -> tuple[Step, Step]:
    """Draw approval requests, and the decisions and results that follow."""
    requests: Step = []
    decided: Step = []
    results: Step = []
    for number in range(draw(st.integers(1, 2))):
        path, tool, arguments = draw(paths), draw(texts), draw(args)
        # A request without a call must have an unused id.
        is_called = draw(st.booleans())
        call_id = f"q{number}" if is_called else f"only-{number}-{draw(st.uuids())}"
        if is_called:
            requests.append(ToolCallEvent(call_id, tool, arguments, agent_path=path))
        requests.append(ApprovalRequestEvent(call_id, tool, arguments, draw(st.none() | texts), agent_path=path))
        approved = draw(st.booleans())
        decided.append(ApprovalResponseEvent(call_id, approved, draw(st.none() | texts), agent_path=path))
        success = approved and draw(st.booleans())
        results.append(ToolResultEvent(call_id, tool, success, draw(texts), agent_path=path))
    return requests, [*decided, *results]


CLIENT_TOOLS = ("client_find", "client_ask")


@st.composite
def waits(draw: st.DrawFn) -> tuple[Step, Step]:
    """Draw what a turn waits for, calls of the client's tools and questions, and the answers."""
    waiting: Step = []
    answered: Step = []
    for number in range(draw(st.integers(1, 2))):
        unique = draw(st.uuids())
        if draw(st.booleans()):
            call_id, tool = f"client-{number}-{unique}", draw(st.sampled_from(CLIENT_TOOLS))
            waiting.append(ToolCallEvent(call_id, tool, draw(args), "client"))
            answered.append(ToolResultEvent(call_id, tool, draw(st.booleans()), draw(texts)))
        else:
            path, question = draw(paths), f"q_{unique}"
            schema = draw(st.none() | st.just({"type": "string", "enum": ["a", "b"]}))
            waiting.append(QuestionEvent(question, draw(texts), schema, agent_path=path))
            declined = draw(st.booleans())
            value = None if declined else draw(values)
            answered.append(ReplyEvent(question, value, declined, draw(st.none() | texts), agent_path=path))
    return waiting, draw(st.permutations(answered))


open_calls = st.builds(
    ToolCallEvent, st.uuids().map(lambda unique: f"open-{unique}"), texts, args, agent_path=paths
).map(lambda call: [call])


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Event], Outcome | None]:
    """Draw the events of an agent and the outcome; None for a turn that has not ended."""
    events: list[Event] = []
    for part in draw(st.lists(st.one_of(singles, singles, calls(), open_calls, approvals(), waits()), max_size=7)):
        events += [*part[0], *part[1]] if isinstance(part, tuple) else part
    if draw(st.integers(0, 3)) == 0:
        events += draw(approvals() | waits())[0]
    outcome: Any = draw(st.sampled_from(["completed", "failed", "cancelled", "interrupted", None]))
    return events, outcome


def ending(events: Sequence[Event], outcome: Outcome | None, session_id: str, turn_id: str) -> list[Event]:
    if outcome is None:
        return []
    done = DoneEvent(outcome, session_id, turn_id)
    if outcome != "completed":
        return [ErrorEvent("It broke.", "odd"), done] if outcome == "failed" else [done]
    text = "".join(event.content for event in events if isinstance(event, TokenEvent) and not event.agent_path)
    cited = tuple(event for event in events if isinstance(event, CitationEvent))
    return [ResponseEvent(text, cited), done]


def log_of(answer: tuple[list[Event], Outcome | None]) -> list[LoggedEvent]:
    yielded, outcome = answer
    start = [SessionEvent("s1", "t1", "echo"), MessageEvent("hello", "ann", "web")]
    events = [*start, *yielded, *ending(yielded, outcome, "s1", "t1")]
    return [log_event(event, position, 1) for position, event in enumerate(events, 1)]


logs = answers().map(log_of)


@st.composite
def restarted_logs(draw: st.DrawFn) -> list[LoggedEvent]:
    """Draw logs with a part that a restart has made void, cut off anywhere."""
    yielded, outcome = draw(answers())
    index = draw(st.integers(0, len(yielded)))
    while index and not _is_boundary(yielded[index - 1]):
        index -= 1
    lost, _ = draw(answers())
    lost = lost[: draw(st.integers(0, len(lost)))]
    start = [SessionEvent("s1", "t1", "echo"), MessageEvent("hello", "ann", "web")]
    events = [*start, *yielded[:index], *lost, RestartEvent(2 + index, "worker_lost"), *yielded[index:]]
    events += ending(yielded, outcome, "s1", "t1")
    return [log_event(event, position, 1) for position, event in enumerate(events, 1)]


def _is_boundary(event: Event) -> bool:
    if isinstance(event, ToolCallEvent):
        return event.runs_on == "server"  # A turn that waits for its client has no worker to lose.
    return isinstance(event, ToolResultEvent | ApprovalResponseEvent)


def _dense() -> list[Event]:
    """Return events with every hostile text in every field, which random draws seldom reach."""
    events: list[Event] = []
    # Reversed, so that there is some text before the first approval request.
    for number, text in enumerate(reversed(HOSTILE)):
        path = ("a",) if number % 3 == 2 else ()
        events += [
            TokenEvent(text),
            ReasoningEvent(text, agent_path=path),
            ToolCallEvent("c1", text, {text: [text]}, agent_path=path),
            TokenEvent(text, agent_path=("a",)),
            ToolResultEvent("c1", text, number % 2 == 0, text, agent_path=path),
            CitationEvent(1, f"{number} {text}", url=text),
            ToolCallEvent("c2", text, {}),
            ApprovalRequestEvent("c2", text, {}, text),
            ApprovalResponseEvent("c2", number % 2 == 0, text),
            ToolResultEvent("c2", text, number % 2 == 0, text),
            QuestionEvent(f"q{number}", text, {"type": "string", "title": text}, agent_path=path),
            ReplyEvent(f"q{number}", text, reason=text, by=text, agent_path=path),
            TokenEvent(f"{text}."),
            ToolCallEvent(f"client-{number}", CLIENT_TOOLS[0], {text: text}, "client"),
            QuestionEvent(f"q_{number}", text, {"type": "string", "description": text}),
            ReplyEvent(f"q_{number}", text, by=text),
            ToolResultEvent(f"client-{number}", CLIENT_TOOLS[0], number % 2 == 0, text),
            TokenEvent(text),
        ]
    return events


DENSE: tuple[list[Event], Outcome] = _dense(), "completed"
