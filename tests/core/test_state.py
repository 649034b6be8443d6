"""The fold of a log into a state."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import folded
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
from turnwire.core.log.turns import Step, TurnState

DONE = DoneEvent("completed", "s1", "t1")


def step(state: TurnState, step_id: str) -> Step:
    (match,) = (step for step in state.steps if step.id == step_id)
    return match


def test_opening_events_give_ids_agent_and_message() -> None:
    state = folded()
    assert (state.session_id, state.turn_id, state.agent, state.message) == ("s1", "t1", "echo", "hello")
    assert (state.position, state.outcome, state.text) == (2, None, "")


def test_text_is_the_tokens_of_the_turns_own_agent() -> None:
    state = folded(
        TokenEvent("The "),
        TokenEvent("a sub-agent's", agent_path=("helper",)),
        ReasoningEvent("thinking"),
        TokenEvent("answer"),
        CustomEvent("chart", {"x": 1}),
        DONE,
    )
    assert state.text == "The answer"
    assert (state.outcome, state.position) == ("completed", 8)


def test_tool_call_is_a_step_with_its_answer_offset() -> None:
    state = folded(
        TokenEvent("Lét me "),
        ToolCallEvent("c1", "find", {"q": "x"}),
        ToolProgressEvent("c1", "half way"),
        ToolProgressEvent("c1", fraction=0.9),
        TokenEvent("look."),
        ToolResultEvent("c1", "find", True, {"n": 3}, 12.5),
        ToolCallEvent("c2", "fetch", {}),
        ToolResultEvent("c2", "fetch", False, "no such page"),
    )
    first, second = state.steps
    assert (first.kind, first.name, first.args, first.answer_offset, first.position) == (
        "tool",
        "find",
        {"q": "x"},
        7,
        4,
    )
    assert (first.state, first.result, first.ms, first.progress) == ("succeeded", {"n": 3}, 12.5, "half way")
    assert (second.state, second.result, second.answer_offset) == ("failed", "no such page", 12)
    assert state.tools_used == ["find", "fetch"]


def test_result_without_a_call_is_a_step() -> None:
    state = folded(ToolResultEvent("c1", "find", True, 3))
    assert (step(state, "c1").state, step(state, "c1").result) == ("succeeded", 3)


def test_call_with_an_approval_request_is_waiting() -> None:
    events = [ToolCallEvent("c1", "delete", {"id": 1}), ApprovalRequestEvent("c1", "delete", {"id": 1})]
    assert step(folded(*events), "c1").state == "waiting"
    assert step(folded(*events, ApprovalResponseEvent("c1", True)), "c1").state == "running"
    assert step(folded(events[1]), "c1").args == {"id": 1}


def test_search_events_with_one_id_are_one_step() -> None:
    state = folded(
        SearchEvent("r1", "started", "web", "tides"),
        SearchEvent("r1", "finished", "web", "tides", hits=(Hit(1, "d1", title="Tides"),), ms=3.5),
        SearchEvent("r2", "failed", "files", "moon"),
    )
    assert [(s.id, s.kind, s.state) for s in state.steps] == [("r1", "search", "succeeded"), ("r2", "search", "failed")]
    assert list(step(state, "r1").result) == [{"index": 1, "document_id": "d1", "title": "Tides"}]
    assert (step(state, "r1").args, step(state, "r1").ms) == ({"query": "tides"}, 3.5)
    assert state.tools_used == ["web", "files"]


def test_reviews_and_handoffs_are_steps_and_not_tools() -> None:
    state = folded(ReviewEvent("v1", 1, "rejected", kept=(1,)), HandoffEvent("writer"))
    assert [(s.kind, s.name, s.state) for s in state.steps] == [
        ("review", "rejected", "succeeded"),
        ("handoff", "writer", "succeeded"),
    ]
    assert list(step(state, "v1").result["kept"]) == [1]
    assert state.tools_used == []


def test_step_of_a_sub_agent_keeps_its_path() -> None:
    state = folded(ToolCallEvent("c1", "find", {}, agent_path=("helper",)))
    assert step(state, "c1").agent_path == ("helper",)


def test_usage_is_summed_and_absent_numbers_stay_absent() -> None:
    assert folded().usage is None
    state = folded(
        UsageEvent(model="m1", input_tokens=10, output_tokens=0),
        UsageEvent(model="m2", input_tokens=5),
        UsageEvent(cached_input_tokens=2),
    )
    assert state.usage == Usage(input_tokens=15, output_tokens=0, cached_input_tokens=2, reasoning_tokens=None)


def test_state_keeps_the_last_status_the_error_and_the_citations() -> None:
    error = ErrorEvent("it broke", "agent_failed")
    cited = [CitationEvent(1, "d1"), CitationEvent(2, "d2")]
    state = folded(StatusEvent("reading"), *cited, StatusEvent("writing"), error, DoneEvent("failed", "s1", "t1", "x"))
    assert (state.status, state.error, state.citations) == ("writing", error, cited)
    assert (state.outcome, state.reason) == ("failed", "x")


def test_timings_start_at_the_message() -> None:
    state = folded(StatusEvent("reading"), TokenEvent("a"), TokenEvent("b"), DONE)
    assert state.timings == {"first_event_ms": 10, "first_token_ms": 20, "total_ms": 40}


def test_token_can_be_the_first_event() -> None:
    state = folded(TokenEvent("a"), StatusEvent("reading"), DONE)
    assert state.timings == {"first_event_ms": 10, "first_token_ms": 10, "total_ms": 30}


def test_response_adds_its_mode_and_timings() -> None:
    state = folded(TokenEvent("a"), ResponseEvent("a", mode="synthesis", timings={"retrieval_ms": 7.0}), DONE)
    assert state.mode == "synthesis"
    assert state.timings["retrieval_ms"] == 7.0


@pytest.mark.parametrize(("from_position", "text"), [(2, ""), (3, "one "), (4, "one two "), (5, "one two ")])
def test_restart_removes_the_events_after_its_position(from_position: int, text: str) -> None:
    state = folded(
        TokenEvent("one "),  # 3
        TokenEvent("two "),  # 4
        ToolCallEvent("c1", "find", {}),  # 5
        CitationEvent(1, "d1"),  # 6
        TokenEvent("three"),  # 7
        UsageEvent(output_tokens=3),  # 8
        RestartEvent(from_position, "worker_lost"),  # 9
        TokenEvent("again"),  # 10
        ToolCallEvent("c2", "fetch", {}),  # 11
    )
    assert state.text == text + "again"
    assert [s.id for s in state.steps] == (["c1", "c2"] if from_position >= 5 else ["c2"])
    assert step(state, "c2").answer_offset == len(text + "again")
    assert state.citations == []
    assert state.tools_used == (["find", "fetch"] if from_position >= 5 else ["fetch"])
    assert state.usage == Usage(output_tokens=3)


def test_restart_removes_a_later_result() -> None:
    state = folded(
        ToolCallEvent("c1", "find", {}),  # 3
        SearchEvent("r1", "started", "web", "tides"),  # 4
        ToolResultEvent("c1", "find", True, "found"),  # 5
        SearchEvent("r1", "finished", "web", "tides"),  # 6
        RestartEvent(4, "worker_lost"),
    )
    assert [(s.id, s.state, s.result) for s in state.steps] == [("c1", "running", None), ("r1", "running", None)]


def test_restart_removes_a_later_error_and_status() -> None:
    state = folded(StatusEvent("a"), StatusEvent("b"), ErrorEvent("x", "x"), RestartEvent(3, "worker_lost"))
    assert (state.status, state.error) == ("a", None)


def test_two_restarts_in_a_row() -> None:
    state = folded(
        TokenEvent("a"),  # 3
        TokenEvent("b"),  # 4
        RestartEvent(3, "worker_lost"),  # 5
        TokenEvent("c"),  # 6
        RestartEvent(3, "worker_lost"),  # 7
        TokenEvent("d"),  # 8
        RestartEvent(8, "worker_lost"),  # 9
        TokenEvent("e"),  # 10
    )
    assert state.text == "ade"


pieces = st.one_of(
    st.builds(TokenEvent, st.text(max_size=3)),
    st.builds(TokenEvent, st.text(max_size=3), agent_path=st.just(("helper",))),
    st.just(StatusEvent("s")),
    st.just(ToolCallEvent("c", "find", {})),
)


@given(st.lists(pieces, max_size=12), st.lists(pieces, max_size=6), st.data())
def test_text_after_a_restart_equals_a_log_without_the_void_part(
    first: list[Event], then: list[Event], data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(first)))
    restarted = folded(*first, RestartEvent(length + 2, "worker_lost"), *then)
    assert restarted.text == folded(*first[:length], *then).text
    offsets = [s.answer_offset for s in restarted.steps]
    assert offsets == [s.answer_offset for s in folded(*first[:length], *then).steps]


def test_state_round_trips_through_json() -> None:
    state = folded(
        ToolCallEvent("c1", "find", {"q": 1}), ToolResultEvent("c1", "find", True, [1]), TokenEvent("a"), DONE
    )
    assert msgspec.json.decode(msgspec.json.encode(state), type=TurnState) == state
