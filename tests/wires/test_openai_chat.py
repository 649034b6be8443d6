"""`openai_chat`, chunk by chunk."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.core.samples import FULL, folded, logged, texts
from tests.wires.sse import parse, parse_carelessly
from turnwire.core.codec import clean_text
from turnwire.core.contracts import Gap, Reconnect, Reset
from turnwire.core.errors import RestartedError
from turnwire.core.events import (
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
from turnwire.core.turns import TurnState
from turnwire.wires.openai.chat_encoder import OpenAIChat, completion, parse_call_id

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


def test_a_whole_stream_is_a_role_the_answer_and_an_end() -> None:
    head = {"id": "chatcmpl-t1", "object": "chat.completion.chunk", "created": 0, "model": "echo"}

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    assert chunks(TokenEvent("Good "), TokenEvent("day – é"), ResponseEvent("Good day – é"), done()) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Good "}),
        chunk({"content": "day – é"}),
        chunk({}, "stop"),
    ]


def test_usage_is_told_to_who_asks() -> None:
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


def test_usage_that_nobody_knows_is_not_made_up() -> None:
    assert all(chunk["choices"] for chunk in chunks(TokenEvent("x"), done(), wire=WITH_USAGE))
    given = ResponseEvent("x", usage=Usage(input_tokens=1))
    assert chunks(given, done(), wire=WITH_USAGE)[-1]["usage"]["prompt_tokens"] == 1


def test_thoughts_and_pages_have_their_places_and_sub_agents_none() -> None:
    path = ("helper",)
    told = deltas(
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
    assert told[1:] == [
        {"reasoning_content": "hm"},
        {"content": "Yes"},
        {"annotations": [{"type": "url_citation", "url_citation": page}]},
        {},
    ]


def test_what_tools_do_is_not_told() -> None:
    told = deltas(ToolCallEvent("c", "find", {}), ToolResultEvent("c", "find", True, 1), TokenEvent("x"), done())
    assert told == [{"role": "assistant", "content": ""}, {"content": "x"}, {}]


# How it ends


def test_a_stopped_answer_was_cut_short() -> None:
    assert chunks(TokenEvent("par"), done("cancelled"))[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_a_failure_is_an_error_and_no_end(outcome: Outcome) -> None:
    frames = parse(stream(TokenEvent("par"), ErrorEvent("It broke.", "agent_failed"), done(outcome)))
    assert json.loads(frames[-1].data) == {
        "error": {"message": "It broke.", "type": "server_error", "param": None, "code": "agent_failed"}
    }
    (error,) = (json.loads(frame.data) for frame in parse(stream(done(outcome))) if "error" in frame.data)
    assert error["error"]["code"] == "turn_failed"


def test_a_call_that_waits_for_a_person_ends_the_segment() -> None:
    asked = [
        TokenEvent("May I? "),
        ToolCallEvent("c1", "pay", {"amount": 40}),
        ToolCallEvent("c2", "pay", {}),
        ApprovalRequestEvent("c1", "pay", {"amount": 40}),
        ApprovalRequestEvent("c2", "pay", {}),
    ]
    encoder = WIRE.encoder()
    frames = b"".join(map(encoder.frame, logged(asked)))
    paused = encoder.pause()
    assert paused == encoder.pause()
    told = [json.loads(frame.data) for frame in parse(frames + paused)[:-1]]
    assert [chunk["choices"][0]["delta"].get("tool_calls") for chunk in told[-3:]] == [
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
    assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"
    decided = [ApprovalResponseEvent("c1", True), ApprovalResponseEvent("c2", False), TokenEvent("Paid."), done()]
    whole = stream(*asked, *decided)
    assert whole.startswith(frames + paused)
    rest = [json.loads(frame.data)["choices"][0] for frame in parse(whole[len(frames + paused) :])[:-1]]
    assert [choice["delta"] for choice in rest] == [{"role": "assistant", "content": ""}, {"content": "Paid."}, {}]
    assert rest[-1]["finish_reason"] == "stop"
    every = WIRE.encoder()
    for event in logged([*asked, *decided]):
        every.frame(event)
        assert bool(every.pause()) is (event.type == "approval_request")


# As one object


def test_the_whole_answer_as_one_object() -> None:
    told = completion(folded(TokenEvent("Yes"), PAGE, UsageEvent("m", 1, 2), done()), 5)
    ChatCompletion.model_validate(told)
    assert (told["id"], told["created"], told["usage"]["total_tokens"]) == ("chatcmpl-t1", 5, 3)
    (choice,) = told["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes", "stop")
    assert choice["message"]["annotations"][0]["url_citation"]["url"] == "https://tides.example"
    stopped = completion(folded(TokenEvent("Ye"), done("cancelled")), 5)
    assert (stopped["choices"][0]["finish_reason"], stopped["usage"]) == ("length", None)


def test_a_waiting_answer_as_one_object() -> None:
    told = completion(folded(ApprovalRequestEvent("c1", "pay", {"amount": 40})), 5)
    ChatCompletion.model_validate(told)
    (choice,) = told["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["id"], call["function"]["name"], choice["finish_reason"]) == ("call_t1_c1", "pay", "tool_calls")


def test_a_completion_after_a_wait_is_what_came_then() -> None:
    page = CitationEvent(2, "d2", url="https://later.example", answer_start=5, answer_end=8)
    told = completion(folded(TokenEvent("Yes. "), PAGE, TokenEvent("Paid"), page, done()), 5, start=5)
    message = told["choices"][0]["message"]
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
def test_the_id_of_a_waiting_call_names_its_turn(text: str, named: tuple[str, str] | None) -> None:
    assert parse_call_id(text) == named


# The wire


def test_every_chunk_is_one_that_openais_library_knows() -> None:
    log = [event for event in FULL[2:] if not isinstance(event, RestartEvent | DoneEvent)]
    frames = parse(stream(*log, done(), wire=WITH_USAGE))
    for frame in frames:
        if frame.data != "[DONE]":
            ChatCompletionChunk.model_validate(json.loads(frame.data))
    assert [frame.data for frame in frames].count("[DONE]") == 2  # It waited once.


def test_there_are_no_words_for_control_or_a_restart() -> None:
    for control in (Gap(1, 2, TurnState()), Reset(), Reconnect(5)):
        assert WIRE.control(control) is None
    with pytest.raises(RestartedError):
        stream(RestartEvent(2, "worker_lost"))


@given(st.lists(st.one_of(texts.map(TokenEvent), texts.map(ReasoningEvent)), max_size=12))
def test_any_text_comes_back(events: list[TokenEvent | ReasoningEvent]) -> None:
    body = stream(*events, done())
    assert body.isascii()
    assert [frame.data for frame in parse_carelessly(body)] == [frame.data for frame in parse(body)]
    told = deltas(*events, done())
    for name, kind in (("content", TokenEvent), ("reasoning_content", ReasoningEvent)):
        said = "".join(delta.get(name, "") for delta in told)
        assert said == clean_text("".join(event.content for event in events if isinstance(event, kind)))
