"""Tests of TurnPresenter: every event as terminal text, and control characters removed."""

import io
from typing import get_args

import pytest

from tests.channels.console.emulator import Terminal
from tests.core.samples import FULL
from turnwire.channels.console.conversation import TurnPresenter
from turnwire.channels.console.view import PlainView
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    Hit,
    MessageEvent,
    ReasoningEvent,
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
)

BEGINNING: tuple[Event, ...] = (SessionEvent("s", "t", "agent"), MessageEvent("Why?", "anna", "http"))


def present(*events: Event) -> tuple[str, str]:
    """Return the answer and the lines about it."""
    answer, about = io.StringIO(), io.StringIO()
    view = PlainView(answer, about)
    presenter = TurnPresenter(view)
    for event in (*BEGINNING, *events):
        presenter.show(event)
    view.close()
    return answer.getvalue(), about.getvalue()


def test_whole_turn_is_shown_as_answer_and_lines() -> None:
    cited = CitationEvent(1, "d", title="Plants", page_number=3, supporting_quote="Moss is old.")
    answer, about = present(
        StatusEvent("Reading"),
        SearchEvent("s1", "started", "notes", "moss"),
        SearchEvent("s1", "finished", "notes", "moss", hits=(Hit(1, "d"),), ms=412),
        ReviewEvent("r1", 1, "rejected", missing=("age",), next_queries=("moss age",)),
        ReviewEvent("r2", 2, "approved", kept=(1,), dropped=(2,)),
        HandoffEvent("writer"),
        ToolCallEvent("c1", "count", {"of": "moss"}),
        ToolProgressEvent("c1", "half", 0.5),
        ToolResultEvent("c1", "count", True, 3, 12_300),
        TokenEvent("It is "),
        TokenEvent("old. [1]"),
        cited,
        ResponseEvent("It is old. [1]", (cited,)),
        DoneEvent("completed", "s", "t"),
    )
    assert answer == "It is old. [1]\n"
    assert about.splitlines() == [
        "· Reading",
        "✓ notes “moss” · 1 hit 0.4s",
        "■ review: rejected · missing: age · next: moss age",
        "✓ review: approved · 1 kept, 1 dropped",
        "· writer has taken over",
        "✓ count 12s",
        "[1] Plants, p. 3 “Moss is old.”",
    ]


def test_sub_agent_is_indented_and_its_text_is_not_the_answer() -> None:
    path = ("researcher",)
    answer, about = present(
        ToolCallEvent("c1", "look", {}, agent_path=path),
        TokenEvent("I am looking", agent_path=path),
        ToolResultEvent("c1", "look", False, {"error": "there is nothing"}, 100, agent_path=path),
        TokenEvent("Nothing."),
        DoneEvent("completed", "s", "t"),
    )
    assert answer == "Nothing.\n"
    assert about == "  ✗ researcher: look: there is nothing 0.1s\n"


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((ErrorEvent("too fast", "rate_limited"), DoneEvent("failed", "s", "t")), "✗ too fast\n  · Wait a moment"),
        ((ErrorEvent("oh", "odd", True), DoneEvent("failed", "s", "t")), "✗ oh\n  · Ask again."),
        ((DoneEvent("cancelled", "s", "t", "requested"),), "■ stopped\n"),
        ((DoneEvent("cancelled", "s", "t", "superseded"),), "■ stopped (superseded)\n"),
        ((DoneEvent("interrupted", "s", "t"),), "■ the server stopped before the answer was complete; ask again\n"),
        ((RestartEvent(2, "worker_lost"),), "continues after a restart; parts of the answer may repeat"),
        ((RestartEvent(2, "forked"),), "goes on from here; parts of the answer may repeat"),
        ((SessionEvent("s", "t", "a", forked_from="t0", forked_at=7),), "branched from turn t0 at position 7"),
        ((ApprovalRequestEvent("c", "pay", {"sum": 3}, "It is much"),), "■ pay(sum=3) needs your consent\n  · It is"),
    ],
)
def test_problem_is_shown_with_a_hint(events: tuple[Event, ...], text: str) -> None:
    assert text in present(*events)[1]


def test_answer_without_tokens_is_shown_once() -> None:
    assert present(ResponseEvent("Whole."), DoneEvent("completed", "s", "t"))[0] == "Whole.\n"
    assert present(TokenEvent("Whole."), ResponseEvent("Whole."))[0] == "Whole.\n"


def test_reasoning_is_shown_live_and_not_kept() -> None:
    terminal = Terminal()
    presenter = TurnPresenter(terminal.view)
    for event in BEGINNING:
        presenter.show(event)
    terminal.wait(0.1)
    assert "waiting for the agent" in terminal.shown[-1]
    for piece in ("Let me ", "think about ", "moss"):
        presenter.show(ReasoningEvent(piece))
    terminal.wait(0.1)
    assert "thinking: Let me think about moss" in terminal.shown[-1]
    presenter.show(TokenEvent("Moss."))
    terminal.view.close()
    assert terminal.transcript == ["Moss."]


@pytest.mark.parametrize("evil", ["\x1b[2J", "\x1b]0;owned\x07", "\x9b2J", "\r\x1b[A", "\x07"])
def test_control_characters_in_events_are_removed(evil: str) -> None:
    terminal = Terminal()
    presenter = TurnPresenter(terminal.view)
    for event in (
        StatusEvent(f"status{evil}"),
        HandoffEvent(f"agent{evil}"),
        ToolCallEvent("c", f"tool{evil}", {f"a{evil}": f"b{evil}"}),
        ToolProgressEvent("c", f"progress{evil}"),
        SearchEvent("s", "started", f"tool{evil}", f"query{evil}"),
        ReviewEvent("r", 1, "rejected", f"feedback{evil}", missing=(f"word{evil}",)),
        ToolResultEvent("c", f"tool{evil}", False, f"result{evil}"),
        ReasoningEvent(f"thought{evil}"),
        TokenEvent(f"text{evil}", agent_path=(f"name{evil}",)),
        TokenEvent(f"text{evil}"),
        CitationEvent(1, f"d{evil}", title=f"title{evil}", supporting_quote=f"quote{evil}", url=f"url{evil}"),
        ApprovalRequestEvent("c", f"tool{evil}", {"a": evil}, f"why{evil}"),
        ErrorEvent(f"error{evil}", "code"),
        DoneEvent("cancelled", "s", "t", f"reason{evil}"),
    ):
        presenter.show(event)
        terminal.wait(0.1)
    terminal.view.close()
    assert "\x1b[2J" not in terminal.emulator.written
    assert "\x07" not in terminal.emulator.written
    assert "\x9b" not in terminal.emulator.written
    assert terminal.transcript[0].startswith("· status")


@pytest.mark.parametrize("event", FULL, ids=lambda event: type(event).__name__)
def test_every_event_can_be_shown(event: Event) -> None:
    present(event)
    terminal = Terminal()
    TurnPresenter(terminal.view).show(event)
    terminal.view.close()


def test_samples_cover_every_event() -> None:
    assert {type(event) for event in FULL} == set(get_args(Event))
