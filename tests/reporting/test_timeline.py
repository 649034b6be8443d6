"""Tests of timelines: their computation from a log, and the SVG, HTML and terminal renderers."""

import io
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.contracts.log_strategies import logs
from turnwire.core.codec import LoggedEvent, log_event
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    MessageEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.reporting.svg_timeline import page, svg
from turnwire.reporting.terminal_timeline import TimelineView
from turnwire.reporting.timeline import Timeline, timeline_json, timeline_of
from turnwire.reporting.timeline_scale import Scale

HOUR = 3_600_000
BEGAN = 1_700_000_000_000


def log(*timed: tuple[int, Event], epoch: int = 1) -> list[LoggedEvent]:
    """Return a log of events with their times, in ms after its beginning."""
    opening = [(0, SessionEvent("s", "t", "<agent>")), (0, MessageEvent("hi", "ann", "http"))]
    events = [log_event(event, position, epoch) for position, (_, event) in enumerate([*opening, *timed], start=1)]
    for logged, (at, _) in zip(events, [*opening, *timed], strict=True):
        logged.at = BEGAN + at
    return events


def printed(line: Timeline, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(TimelineView(line))
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
        ("<fetch & run>", "failed", 1_500),
    ]
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
    assert [mark.text for mark in line.marks] == [
        "taken over by another worker",
        "restarted after the last finished step",
    ]


def test_names_are_escaped_in_svg_and_html() -> None:
    line = timeline_of(ANSWERED)
    drawn = ElementTree.fromstring(svg(line).encode())
    words = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "helper › <fetch & run>" in words
    assert any(word.startswith("<agent>: completed") for word in words)
    assert "<fetch" not in page(line)
    assert "&lt;fetch &amp; run&gt;" in page(line)


@given(st.one_of(logs, st.just(ANSWERED)), st.integers(60, 200))
def test_any_log_is_drawn_at_any_width(events: list[LoggedEvent], width: int) -> None:
    line = timeline_of(events, now=(events[0].at if events else 0) + 1_000)
    assert all(phase.ended == following.began for phase, following in pairwise(line.phases))
    assert all(cell_len(row) <= width for row in printed(line, width))
    ElementTree.fromstring(svg(line).encode())
    assert page(line).endswith("</html>\n")
