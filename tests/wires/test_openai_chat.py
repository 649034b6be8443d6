"""`openai_chat`: the chunks of the stream, and the completion object."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.core.samples import FULL, folded, logged, texts
from tests.wires.sse import parse, parse_carelessly
from turnwire.core.contracts.wires import Gap, Reconnect, Reset
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    Outcome,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.turns import TurnState
from turnwire.wires.openai.chat.encoder import OpenAIChat, completion, parse_call_id

WIRE = OpenAIChat()
WITH_USAGE = OpenAIChat(include_usage=True)
PAGE = CitationEvent(1, "d1", title="Tides", url="https://tides.example", answer_start=0, answer_end=3)


def done(outcome: Outcome = "completed") -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1")


def stream(*events: Event, wire: OpenAIChat = WIRE) -> bytes:
    return b"".join(map(wire.encoder().frame, logged(events)))


def chunks(*events: Event, wire: OpenAIChat = WIRE) -> list[dict[str, Any]]:
    frames = parse(stream(*events, wire=wire))
    assert all((frame.id, frame.event, frame.retry) == (None, None, None) for frame in frames)
    assert frames.pop().data == "[DONE]"
    return [json.loads(frame.data) for frame in frames]


def deltas(*events: Event) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(*events)]


def test_whole_stream_has_role_answer_and_finish() -> None:
    head = {"id": "chatcmpl-t1", "object": "chat.completion.chunk", "created": 0, "model": "echo"}

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    assert chunks(TokenEvent("Good "), TokenEvent("day – é"), ResponseEvent("Good day – é"), done()) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Good "}),
        chunk({"content": "day – é"}),
        chunk({}, "stop"),
    ]


def test_usage_is_sent_with_include_usage() -> None:
    events = (TokenEvent("x"), UsageEvent("m", 7, 5, 2, 1), UsageEvent("m", 1), done())
    assert not any("usage" in chunk for chunk in chunks(*events))
    *before, last = chunks(*events, wire=WITH_USAGE)
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 5,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert WITH_USAGE.key != WIRE.key


def test_unknown_usage_is_zero() -> None:
    assert chunks(TokenEvent("x"), done(), wire=WITH_USAGE)[-1]["usage"]["total_tokens"] == 0
    response = ResponseEvent("x", usage=Usage(input_tokens=1))
    assert chunks(response, done(), wire=WITH_USAGE)[-1]["usage"]["prompt_tokens"] == 1


def test_reasoning_and_pages_are_sent_and_sub_agents_are_not() -> None:
    path = ("helper",)
    read = deltas(
        ReasoningEvent("hm"),
        ReasoningEvent("mumble", agent_path=path),
        TokenEvent("mumble", agent_path=path),
        TokenEvent("Yes"),
        PAGE,
        CitationEvent(2, "no page"),
        ResponseEvent("Yes", (PAGE,)),
        done(),
    )
    page = {"url": "https://tides.example", "title": "Tides", "start_index": 0, "end_index": 3}
    assert read[1:] == [
        {"reasoning_content": "hm"},
        {"content": "Yes"},
        {"annotations": [{"type": "url_citation", "url_citation": page}]},
        {},
    ]


def test_tool_events_are_left_out() -> None:
    read = deltas(ToolCallEvent("c", "find", {}), ToolResultEvent("c", "find", True, 1), TokenEvent("x"), done())
    assert read == [{"role": "assistant", "content": ""}, {"content": "x"}, {}]


# Ends of a turn


def test_cancelled_turn_finishes_with_length() -> None:
    assert chunks(TokenEvent("par"), done("cancelled"))[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_failed_turn_ends_with_an_error_and_no_done(outcome: Outcome) -> None:
    frames = parse(stream(TokenEvent("par"), ErrorEvent("It broke.", "agent_failed"), done(outcome)))
    assert json.loads(frames[-1].data) == {
        "error": {"message": "It broke.", "type": "server_error", "param": None, "code": "agent_failed"}
    }
    (error,) = (json.loads(frame.data) for frame in parse(stream(done(outcome))) if "error" in frame.data)
    assert error["error"]["code"] == "turn_failed"


def test_call_waiting_for_approval_ends_the_segment() -> None:
    requested = [
        TokenEvent("May I? "),
        ToolCallEvent("c1", "pay", {"amount": 40}),
        ToolCallEvent("c2", "pay", {}),
        ApprovalRequestEvent("c1", "pay", {"amount": 40}),
        ApprovalRequestEvent("c2", "pay", {}),
    ]
    encoder = WIRE.encoder()
    frames = b"".join(map(encoder.frame, logged(requested)))
    paused = encoder.pause()
    assert paused == encoder.pause()
    read = [json.loads(frame.data) for frame in parse(frames + paused)[:-1]]
    assert [chunk["choices"][0]["delta"].get("tool_calls") for chunk in read[-3:]] == [
        [
            {
                "index": 0,
                "id": "call_t1_c1",
                "type": "function",
                "function": {"name": "pay", "arguments": '{"amount":40}'},
            }
        ],
        [{"index": 1, "id": "call_t1_c2", "type": "function", "function": {"name": "pay", "arguments": "{}"}}],
        None,
    ]
    assert read[-1]["choices"][0]["finish_reason"] == "tool_calls"
    decided = [ApprovalResponseEvent("c1", True), ApprovalResponseEvent("c2", False), TokenEvent("Paid."), done()]
    whole = stream(*requested, *decided)
    assert whole.startswith(frames + paused)
    rest = [json.loads(frame.data)["choices"][0] for frame in parse(whole[len(frames + paused) :])[:-1]]
    assert [choice["delta"] for choice in rest] == [{"role": "assistant", "content": ""}, {"content": "Paid."}, {}]
    assert rest[-1]["finish_reason"] == "stop"
    every = WIRE.encoder()
    for event in logged([*requested, *decided]):
        every.frame(event)
        assert bool(every.pause()) is (event.type == "approval_request")


# Completion objects


def test_completion_of_completed_turn() -> None:
    read = completion(folded(TokenEvent("Yes"), PAGE, UsageEvent("m", 1, 2), done()), 5)
    ChatCompletion.model_validate(read)
    assert (read["id"], read["created"], read["usage"]["total_tokens"]) == ("chatcmpl-t1", 5, 3)
    (choice,) = read["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes", "stop")
    assert choice["message"]["annotations"][0]["url_citation"]["url"] == "https://tides.example"
    stopped = completion(folded(TokenEvent("Ye"), done("cancelled")), 5)
    assert (stopped["choices"][0]["finish_reason"], stopped["usage"]["total_tokens"]) == ("length", 0)


def test_completion_of_waiting_turn_has_the_tool_call() -> None:
    read = completion(folded(ApprovalRequestEvent("c1", "pay", {"amount": 40})), 5)
    ChatCompletion.model_validate(read)
    (choice,) = read["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["id"], call["function"]["name"], choice["finish_reason"]) == ("call_t1_c1", "pay", "tool_calls")


def test_completion_with_start_has_only_the_later_text() -> None:
    page = CitationEvent(2, "d2", url="https://later.example", answer_start=5, answer_end=8)
    read = completion(folded(TokenEvent("Yes. "), PAGE, TokenEvent("Paid"), page, done()), 5, start=5)
    message = read["choices"][0]["message"]
    assert message["content"] == "Paid"
    (annotation,) = message["annotations"]
    assert (annotation["url_citation"]["start_index"], annotation["url_citation"]["end_index"]) == (0, 3)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("call_t1_c1", ("t1", "c1")),
        ("call_t1_a_b", ("t1", "a_b")),
        ("call_t1_", None),
        ("call_t1", None),
        ("call__c1", None),
        ("c1", None),
        ("", None),
    ],
)
def test_parse_call_id_returns_turn_and_call(text: str, named: tuple[str, str] | None) -> None:
    assert parse_call_id(text) == named


# The wire


def test_every_chunk_validates_with_the_openai_library() -> None:
    log = [event for event in FULL[2:] if not isinstance(event, RestartEvent | DoneEvent)]
    frames = parse(stream(*log, done(), wire=WITH_USAGE))
    for frame in frames:
        if frame.data != "[DONE]":
            ChatCompletionChunk.model_validate(json.loads(frame.data))
    assert [frame.data for frame in frames].count("[DONE]") == 4  # It waited three times.


def test_controls_are_not_encoded_and_restart_is_refused() -> None:
    for control in (Gap(1, 2, TurnState()), Reset(), Reconnect(5)):
        assert WIRE.control(control) is None
    with pytest.raises(RestartedError):
        stream(RestartEvent(2, "worker_lost"))


@given(st.lists(st.one_of(texts.map(TokenEvent), texts.map(ReasoningEvent)), max_size=12))
def test_any_text_is_read_back(events: list[TokenEvent | ReasoningEvent]) -> None:
    body = stream(*events, done())
    assert body.isascii()
    assert [frame.data for frame in parse_carelessly(body)] == [frame.data for frame in parse(body)]
    read = deltas(*events, done())
    for name, kind in (("content", TokenEvent), ("reasoning_content", ReasoningEvent)):
        text = "".join(delta.get(name, "") for delta in read)
        assert text == clean_text("".join(event.content for event in events if isinstance(event, kind)))
