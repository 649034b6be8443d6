"""Tests of timelines: their computation from a log, and the SVG, HTML and terminal renderers."""

import io
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.contracts.log_strategies import logs
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    MessageEvent,
    ReasoningEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.reporting.svg_timeline import page, svg
from turnwire.reporting.terminal_timeline import TimelineView
from turnwire.reporting.timeline import Cost, Scale, Timeline, cost_of, timeline_json, timeline_of
from turnwire.settings import ModelPrice

HOUR = 3_600_000
BEGAN = 1_700_000_000_000


def log(*timed: tuple[int, Event], epoch: int = 1) -> list[LoggedEvent]:
    """Return a log of events with their times, in ms after its beginning."""
    opening = [(0, SessionEvent("s", "t", "<agent>")), (0, MessageEvent("hi", "ann", "http"))]
    events = [log_event(event, position, epoch) for position, (_, event) in enumerate([*opening, *timed], start=1)]
    for logged, (at, _) in zip(events, [*opening, *timed], strict=True):
        logged.at = BEGAN + at
    return events


def printed(line: Timeline, width: int, cost: Cost | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(TimelineView(line, cost))
    return out.getvalue().splitlines()


ANSWERED = log(
    (100, SearchEvent("s1", "started", "documents", "q")),
    (400, SearchEvent("s1", "finished", "documents", "q", hits=())),
    (400, ReviewEvent("r1", 1, "approved")),
    (500, ToolCallEvent("c1", "<fetch & run>", {}, agent_path=("helper",))),
    (2_000, ToolResultEvent("c1", "<fetch & run>", False, agent_path=("helper",))),
    *((4_000 + 20 * number, TokenEvent("word ")) for number in range(51)),
    (5_100, DoneEvent("completed", "s", "t")),
)


def test_timeline_has_phases_steps_tokens_and_silences() -> None:
    result = timeline_json(timeline_of(ANSWERED, started_at=BEGAN + 50))
    assert (result["first_event_ms"], result["first_token_ms"], result["length_ms"]) == (100, 4_000, 5_100)
    assert result["tokens"] == {"count": 51, "characters": 255, "reasoning": 0, "per_second": 50.0}
    assert [(phase["name"], phase["began_ms"], phase["ended_ms"]) for phase in result["phases"]] == [
        ("queued", 0, 50),
        ("thinking", 50, 100),
        ("tools", 100, 400),
        ("thinking", 400, 500),
        ("tools", 500, 2_000),
        ("thinking", 2_000, 4_000),
        ("answering", 4_000, 5_000),
        ("thinking", 5_000, 5_100),
    ]
    steps = [(step["name"], step["state"], step["ended_ms"] - step["began_ms"]) for step in result["steps"]]
    assert steps == [
        ("documents", "succeeded", 300),
        ("review: approved", "succeeded", 0),
        ("helper", "succeeded", 1_500),
        ("<fetch & run>", "failed", 1_500),
    ]
    assert [step["depth"] for step in result["steps"]] == [0, 0, 0, 1]
    assert result["silences"] == [{"began_ms": 500, "ended_ms": 2_000}, {"began_ms": 2_000, "ended_ms": 4_000}]
    assert result["outcome"] == "completed"


def test_long_wait_for_approval_is_no_silence_and_is_drawn_short() -> None:
    line = timeline_of(
        log(
            (10, TokenEvent("May I?")),
            (20, ToolCallEvent("c1", "pay", {})),
            (20, ApprovalRequestEvent("c1", "pay", {})),
            (HOUR, ApprovalResponseEvent("c1", True)),
            (HOUR + 500, ToolResultEvent("c1", "pay", True)),
            (HOUR + 600, DoneEvent("completed", "s", "t")),
        )
    )
    assert [(bar.kind, bar.ms) for bar in line.bars] == [("wait", HOUR - 20), ("tool", 500)]
    assert line.silences == []
    scale = Scale(line)
    assert scale(HOUR) - scale(20) < 0.15
    assert scale(HOUR + 500) - scale(HOUR) > 0.5
    assert "1 h 0 min" in svg(line)


def test_running_turn_ends_now_and_queued_turn_has_one_phase() -> None:
    running = timeline_of(log((100, ToolCallEvent("c1", "slow", {}))), started_at=BEGAN, now=BEGAN + 5_000)
    assert (running.length, running.bars[0].ms, running.bars[0].state) == (5_000, 4_900, "running")
    assert [(silence.began, silence.ended) for silence in running.silences] == [(100, 5_000)]
    queued = timeline_of(log(), now=BEGAN + 5_000)
    assert [(phase.name, phase.ms) for phase in queued.phases] == [("queued", 5_000)]
    assert queued.silences == []


def test_restart_voids_steps_and_tokens() -> None:
    events = log(
        (100, TokenEvent("kept")),
        (200, TokenEvent("lost")),
        (250, ReviewEvent("r1", 1, "approved")),
        (300, ToolCallEvent("c1", "lost", {})),
        (9_000, RestartEvent(3, "worker_lost")),
        (9_100, TokenEvent("again")),
        (9_200, DoneEvent("completed", "s", "t")),
    )
    for logged in events[6:]:
        logged.epoch = 2
    line = timeline_of(events)
    assert (line.tokens.times, line.tokens.characters) == ([100, 9_100], len("keptagain"))
    assert [(bar.name, bar.state) for bar in line.bars] == [("review: approved", "void"), ("lost", "void")]
    assert [milestone.text for milestone in line.milestones] == [
        "taken over by another worker",
        "restarted after the last finished step",
    ]


SUPERVISED = log(
    (100, ReasoningEvent("The crew ")),
    (600, ReasoningEvent("knows.")),
    (700, ToolCallEvent("c1", "ask_crew", {"question": "When?"})),
    (700, UsageEvent("big", input_tokens=1_000_000, output_tokens=100_000, cached_input_tokens=500_000)),
    (900, ReasoningEvent("A table.", agent_path=("crew",))),
    (1_000, ToolCallEvent("c2", "timetable", {}, agent_path=("crew",))),
    (1_400, ToolResultEvent("c2", "timetable", True, "09:00", agent_path=("crew",))),
    (1_900, TokenEvent("At nine.", agent_path=("crew",))),
    (2_000, UsageEvent("small", output_tokens=5, agent_path=("crew",))),
    (2_100, ToolResultEvent("c1", "ask_crew", True, "At nine.")),
    (2_500, ReasoningEvent("Good.")),
    (3_000, TokenEvent("It leaves at nine.")),
    (3_100, DoneEvent("completed", "s", "t")),
)


def test_model_calls_reasoning_and_sub_agents_are_a_tree() -> None:
    line = timeline_of(SUPERVISED, started_at=BEGAN + 50)
    assert [(bar.depth, bar.kind, bar.name, bar.began, bar.ended, bar.state) for bar in line.bars] == [
        # The model call began when the turn did, although its first event came later.
        (0, "model", "big", 50, 700, "succeeded"),
        (1, "reasoning", "reasoning", 100, 600, "succeeded"),
        (0, "tool", "ask_crew", 700, 2_100, "succeeded"),
        (1, "agent", "crew", 700, 2_100, "succeeded"),
        # The first model call of the crew reported no usage, so only its reasoning is known.
        (2, "reasoning", "reasoning", 900, 900, "succeeded"),
        (2, "tool", "timetable", 1_000, 1_400, "succeeded"),
        (2, "model", "small", 1_400, 2_000, "succeeded"),
        (0, "reasoning", "reasoning", 2_500, 2_500, "succeeded"),
    ]


def test_sub_agent_that_is_called_again_is_another_bar() -> None:
    calls = [
        event
        for number in (1, 2)
        for event in (
            (number * 100, ToolCallEvent(f"c{number}", "ask_crew", {})),
            (number * 100 + 10, TokenEvent("Aye.", agent_path=("crew",))),
            (number * 100 + 20, ToolResultEvent(f"c{number}", "ask_crew", True)),
        )
    ]
    line = timeline_of(log(*calls))
    assert [(bar.depth, bar.name, bar.began) for bar in line.bars] == [
        (0, "ask_crew", 100),
        (1, "crew", 100),
        (0, "ask_crew", 200),
        (1, "crew", 200),
    ]


def test_cost_counts_priced_models_and_names_the_others() -> None:
    line = timeline_of(SUPERVISED)
    big = ModelPrice(input=2, output=8, cached_input=0.5)
    assert cost_of(line, {}) is None
    # 0.5 M tokens at $2, 0.5 M cached at $0.50, 0.1 M out at $8.
    assert cost_of(line, {"big": big}) == Cost(2.05, ("small",))
    cost = cost_of(line, {"big": big, "small": ModelPrice(input=1, output=2_000)})
    assert cost is not None
    assert (round(cost.dollars, 6), cost.unpriced) == (2.06, ())
    assert timeline_json(line, cost)["cost_usd"] == 2.06
    assert "$2.06" in "".join(row for row in printed(line, 80, cost))


def test_usage_and_cost_of_a_fork_are_its_own() -> None:
    events = log((100, UsageEvent("big", 1_000_000, 0)), (200, TokenEvent("own")), (300, UsageEvent("big", 10, 0)))
    events[0] = log_event(SessionEvent("s", "t", "a", forked_from="t0", forked_at=3), 1, 1)
    events[0].at = BEGAN
    line = timeline_of(events)
    assert (line.usage, len(line.bars)) == (Usage(10, 0), 2)
    assert cost_of(line, {"big": ModelPrice(input=1_000_000, output=1)}) == Cost(10)


def test_names_are_escaped_in_svg_and_html() -> None:
    line = timeline_of(ANSWERED)
    drawn = ElementTree.fromstring(svg(line).encode())
    words = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "<fetch & run>" in words
    assert any(word.startswith("<agent>: completed") for word in words)
    assert "<fetch" not in page(line)
    assert "&lt;fetch &amp; run&gt;" in page(line)


@given(st.one_of(logs, st.just(ANSWERED)), st.integers(46, 200))
def test_any_log_is_drawn_at_any_width(events: list[LoggedEvent], width: int) -> None:
    line = timeline_of(events, now=(events[0].at if events else 0) + 1_000)
    assert all(phase.ended == following.began for phase, following in pairwise(line.phases))
    assert all(cell_len(row) <= width for row in printed(line, width))
    ElementTree.fromstring(svg(line).encode())
    assert page(line).endswith("</html>\n")
