"""The transcript of ended turns: always valid for model providers."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import folded
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    Outcome,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.history import transcript
from turnwire.core.log.turns import Message, ToolRequest, title_from

CUT_SHORT: list[Outcome] = ["cancelled", "failed", "interrupted"]
CALL = ToolCallEvent("c1", "find", {"q": "x"})
RESULT = ToolResultEvent("c1", "find", True, {"n": 3})


def end(outcome: Outcome) -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1")


def conversation(*events: Event) -> tuple[Message, ...]:
    return transcript([folded(*events)])


def check_valid_for_providers(messages: Sequence[Message]) -> None:
    """Check that a user message begins each exchange, every tool call has one result, and an answer follows."""
    assert messages[0].role == "user"
    waiting: list[str] = []
    for before, message in zip([None, *messages], messages, strict=False):
        if message.role == "tool":
            assert message.call_id in waiting
            waiting.remove(message.call_id)
        else:
            assert waiting == [], "a tool call without a result"
            assert before is None or message.role != "user" or before.role != "user", "a message without an answer"
            waiting = [request.call_id for request in message.tool_calls]
    assert waiting == []


def test_tokens_become_one_assistant_message() -> None:
    assert conversation(TokenEvent("Hi "), TokenEvent("there"), end("completed")) == (
        Message("user", "hello"),
        Message("assistant", "Hi there"),
    )


def test_tool_call_splits_the_answer_into_two_messages() -> None:
    assert conversation(TokenEvent("Let me look."), CALL, RESULT, TokenEvent("Three."), end("completed")) == (
        Message("user", "hello"),
        Message("assistant", "Let me look.", tool_calls=(ToolRequest("c1", "find", {"q": "x"}),)),
        Message("tool", '{"n":3}', call_id="c1"),
        Message("assistant", "Three."),
    )


def test_calls_without_text_between_them_are_one_message() -> None:
    messages = conversation(CALL, ToolCallEvent("c2", "fetch", {}), RESULT, TokenEvent("Done."), end("completed"))
    assert [request.call_id for request in messages[1].tool_calls] == ["c1", "c2"]
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]


def test_text_result_is_not_encoded_as_json() -> None:
    messages = conversation(CALL, ToolResultEvent("c1", "find", False, 'no "such" page'), end("completed"))
    assert messages[2].content == 'no "such" page'


def test_calls_of_sub_agents_are_omitted() -> None:
    inner = ToolCallEvent("c9", "find", {}, agent_path=("helper",))
    assert all(not message.tool_calls for message in conversation(inner, TokenEvent("Hi"), end("completed")))


@pytest.mark.parametrize("outcome", CUT_SHORT)
def test_partial_answer_is_kept_with_a_note(outcome: Outcome) -> None:
    messages = conversation(TokenEvent("The first half"), end(outcome))
    assert messages[1].content.startswith("The first half\n\n[")
    assert len({conversation(end(each))[1].content for each in CUT_SHORT}) == 3


@pytest.mark.parametrize("outcome", CUT_SHORT)
def test_unfinished_call_gets_a_synthetic_result(outcome: Outcome) -> None:
    for unfinished in ([CALL], [CALL, ApprovalRequestEvent("c1", "find", {})], [TokenEvent("a"), CALL]):
        messages = conversation(*unfinished, end(outcome))
        check_valid_for_providers(messages)
        (result,) = (message for message in messages if message.role == "tool")
        assert (result.call_id, result.content) == ("c1", '{"error":"cancelled"}')
        assert messages[-1].content.startswith("[")


def test_failed_turn_without_text_has_an_answer() -> None:
    messages = conversation(ErrorEvent("it broke", "agent_failed"), end("failed"))
    check_valid_for_providers(messages)
    assert "it broke" not in messages[-1].content


def test_transcript_keeps_the_order_of_turns() -> None:
    answers = (
        [TokenEvent("one"), end("completed")],
        [CALL, end("interrupted")],
        [end("cancelled")],
        [end("completed")],
    )
    messages = transcript(folded(*events) for _ in range(2) for events in answers)
    check_valid_for_providers(messages)
    assert [message.role for message in messages].count("user") == 8


steps = st.one_of(
    st.builds(TokenEvent, st.text(min_size=1, max_size=3)),
    st.builds(lambda n: ToolCallEvent(f"c{n}", "find", {}), st.integers(1, 3)),
    st.builds(lambda n: ToolResultEvent(f"c{n}", "find", True, n), st.integers(1, 3)),
    st.just(TokenEvent("x", agent_path=("helper",))),
)


@given(st.lists(steps, max_size=10, unique_by=repr), st.sampled_from([*CUT_SHORT, "completed"]))
def test_transcript_of_any_events_is_valid_and_complete(events: list[Event], outcome: Outcome) -> None:
    state = folded(*events, end(outcome))
    messages = transcript([state])
    check_valid_for_providers(messages)
    text = "".join(message.content for message in messages if message.role == "assistant")
    assert text.startswith(state.text)


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("Where is the station?", "Where is the station?"),
        ("  two\n lines\t here ", "two lines here"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("word " * 40, ("word " * 12)[:59].rstrip() + "…"),
        ("", ""),
    ],
)
def test_title_is_the_start_of_the_message_on_one_line(message: str, title: str) -> None:
    assert title_from(message) == title
