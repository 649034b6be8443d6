"""`openai_responses`: the frames of the stream, and the response object."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.core.samples import FULL, OPENING, logged, texts
from tests.wires.sse import parse, parse_carelessly
from turnwire.core.contracts.wires import Gap, Reconnect, Reset
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent, clean_text
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    Outcome,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnState
from turnwire.wires.openai.responses.encoder import (
    OpenAIResponses,
)
from turnwire.wires.openai.responses.frames import (
    ECHOED,
    parse_response_id,
    response_id,
)
from turnwire.wires.openai.responses.resume import log_of_state

WIRE = OpenAIResponses()
# The fields that the Open Responses specification requires.
REQUIRED = {
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
}


def done(outcome: Outcome = "completed") -> DoneEvent:
    return DoneEvent(outcome, "s1", "t1")


def stream(*events: Event, wire: OpenAIResponses = WIRE) -> bytes:
    return b"".join(map(wire.encoder().frame, logged(events)))


def parse_events(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a whole stream, after checking their names and numbers."""
    *frames, last = parse(body)
    assert last.data == "[DONE]"
    events = [json.loads(frame.data) for frame in frames]
    assert [frame.event for frame in frames] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all((frame.id, frame.retry) == (None, None) for frame in frames)
    return events


def events_of(*events: Event, wire: OpenAIResponses = WIRE) -> list[dict[str, Any]]:
    return parse_events(stream(*events, wire=wire))


def response(*events: Event, wire: OpenAIResponses = WIRE) -> dict[str, Any]:
    return events_of(*events, wire=wire)[-1]["response"]


def answer(output: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])


# A whole stream


def test_whole_stream_of_an_answer() -> None:
    events = events_of(TokenEvent("Good "), TokenEvent("day – é"), ResponseEvent("Good day – é"), done())
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    ids = {"item_id": "msg_t1_3", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "Good day – é", "annotations": [], "logprobs": []}
    item = {"id": "msg_t1_3", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    assert events[2]["item"] == {**item, "status": "in_progress", "content": []}
    assert events[3] == {
        "type": "response.content_part.added",
        "sequence_number": 3,
        **ids,
        "part": {**part, "text": ""},
    }
    assert events[5] == {
        "type": "response.output_text.delta",
        "sequence_number": 5,
        **ids,
        "delta": "day – é",
        "logprobs": [],
    }
    assert events[6]["text"] == "Good day – é"
    assert events[7]["part"] == part
    assert events[8]["item"] == item
    assert events[9]["response"]["output"] == [item]


def test_response_has_all_required_fields_from_the_first_event_on() -> None:
    for event in events_of(TokenEvent("x"), UsageEvent("m", 7, 5, 2, 1), done()):
        if "response" in event:
            assert set(event["response"]) == REQUIRED | {"conversation", "user"}
    first, *_, last = events_of(TokenEvent("x"), UsageEvent("m", 7, 5, 2, 1), UsageEvent("m", 1), done())
    assert first["response"] == {
        **ECHOED,
        "id": "resp_t1",
        "object": "response",
        "created_at": 0,
        "completed_at": None,
        "status": "in_progress",
        "model": "echo",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "store": True,
    }
    assert (last["response"]["status"], last["response"]["completed_at"]) == ("completed", 1)
    assert last["response"]["usage"] == {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 13,
    }


def test_reasoning_tools_and_text_are_items_in_order() -> None:
    events = events_of(
        ReasoningEvent("Let me "),
        ReasoningEvent("see."),
        TokenEvent("First. "),
        ToolCallEvent("c1", "find", {"q": "é"}),
        ToolResultEvent("c1", "find", True, {"n": [1]}),
        ToolCallEvent("c2", "find", {}),
        ToolResultEvent("c2", "find", False, "no luck"),
        TokenEvent("Then."),
        done(),
    )
    output = events[-1]["response"]["output"]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.added"] == [*range(7)]
    assert output[0] == {
        "id": "rs_t1_3",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Let me see."}],
    }
    assert output[2:6] == [
        {
            "id": "fc_t1_6",
            "type": "function_call",
            "call_id": "c1",
            "name": "find",
            "arguments": '{"q":"é"}',
            "status": "completed",
        },
        {
            "id": "fco_t1_7",
            "type": "function_call_output",
            "call_id": "c1",
            "output": '{"n":[1]}',
            "status": "completed",
        },
        {
            "id": "fc_t1_8",
            "type": "function_call",
            "call_id": "c2",
            "name": "find",
            "arguments": "{}",
            "status": "completed",
        },
        {
            "id": "fco_t1_9",
            "type": "function_call_output",
            "call_id": "c2",
            "output": "no luck",
            "status": "incomplete",
        },
    ]
    assert answer(output) == "First. Then."
    call = [event for event in events if event.get("output_index") == 2]
    assert [event["type"] for event in call] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert call[0]["item"]["arguments"] == ""
    assert call[1]["delta"] == call[2]["arguments"] == '{"q":"é"}'


def test_reused_call_id_becomes_another_call() -> None:
    calls = [
        event for _ in range(3) for event in (ToolCallEvent("c", "find", {}), ToolResultEvent("c", "find", True, 1))
    ]
    output = response(*calls, done())["output"]
    assert [item["call_id"] for item in output] == ["c", "c", "c-2", "c-2", "c-3", "c-3"]


def test_unknown_events_are_sent_in_a_keepalive() -> None:
    events = events_of(StatusEvent("reading"), CustomEvent("chart", {"x": "é"}, agent_path=("a",)), done())
    assert events[2:4] == [
        {"type": "keepalive", "sequence_number": 2, "event": {"type": "status", "text": "reading"}},
        {
            "type": "keepalive",
            "sequence_number": 3,
            "event": {"type": "custom", "name": "chart", "data": {"x": "é"}, "agent_path": ["a"]},
        },
    ]


def test_sub_agent_text_is_not_in_the_answer() -> None:
    path = ("helper",)
    output = response(
        TokenEvent("mumble", agent_path=path), ReasoningEvent("hm", agent_path=path), TokenEvent("Yes."), done()
    )["output"]
    assert [item["type"] for item in output] == ["message"]
    assert answer(output) == "Yes."


def test_empty_token_starts_no_message() -> None:
    assert response(TokenEvent(""), done())["output"] == []


# Ends of a response


@pytest.mark.parametrize(
    ("outcome", "kind", "status"),
    [
        ("completed", "response.completed", "completed"),
        ("cancelled", "response.incomplete", "cancelled"),
        ("failed", "response.failed", "failed"),
        ("interrupted", "response.failed", "failed"),
    ],
)
def test_outcome_sets_event_and_status(outcome: Outcome, kind: str, status: str) -> None:
    last = events_of(TokenEvent("par"), ErrorEvent("It broke.", "agent_failed"), done(outcome))[-1]
    response_object = last["response"]
    assert (last["type"], response_object["status"]) == (kind, status)
    assert response_object["error"] == (
        {"code": "agent_failed", "message": "It broke."} if status == "failed" else None
    )
    assert response_object["incomplete_details"] == ({"reason": "cancelled"} if status == "cancelled" else None)
    assert (response_object["completed_at"] is not None) is (status == "completed")
    (item,) = response_object["output"]
    assert item["status"] == ("completed" if outcome == "completed" else "incomplete")
    assert item["content"][0]["text"] == "par"


def test_failure_without_error_event_has_a_default_message() -> None:
    assert response(done("failed"))["error"] == {
        "code": "turn_failed",
        "message": "The answer could not be completed.",
    }


def test_usage_of_response_event_counts_without_usage_events() -> None:
    usage = Usage(input_tokens=3, output_tokens=4)
    assert response(ResponseEvent("", usage=usage), done())["usage"]["total_tokens"] == 7
    assert response(UsageEvent("m", 1, 1), ResponseEvent("", usage=usage), done())["usage"]["total_tokens"] == 2
    assert response(done())["usage"]["total_tokens"] == 0


# Citations


def annotations(*events: Event) -> list[list[dict[str, Any]]]:
    """Return the annotations of every message, after checking them against the annotation events."""
    read = events_of(*events)
    messages = [item for item in read[-1]["response"]["output"] if item["type"] == "message"]
    for event in read:
        if event["type"] == "response.output_text.annotation.added":
            (message,) = (message for message in messages if message["id"] == event["item_id"])
            assert message["content"][0]["annotations"][event["annotation_index"]] == event["annotation"]
    return [message["content"][0]["annotations"] for message in messages]


def test_page_citation_has_offsets_in_the_message() -> None:
    cited = CitationEvent(1, "d1", title="Tides", url="https://tides.example", answer_start=6, answer_end=10)
    call = ToolCallEvent("c", "find", {})
    (first, second) = annotations(TokenEvent("One. "), call, TokenEvent("Two [1]."), cited, done())
    assert first == []
    assert second == [
        {
            "type": "url_citation",
            "url": "https://tides.example",
            "title": "Tides",
            "start_index": 1,
            "end_index": 5,
        }
    ]


def test_citation_of_earlier_message_annotates_that_message() -> None:
    cited = CitationEvent(1, "d1", answer_start=1, answer_end=3)
    call = ToolCallEvent("c", "find", {})
    (first, second) = annotations(TokenEvent("One. "), call, TokenEvent("Two."), cited, done())
    assert ([citation["index"] for citation in first], second) == ([3], [])


def test_document_citation_is_a_file_citation() -> None:
    cited = CitationEvent(1, "tides.md", title="Tides", answer_start=0, answer_end=3)
    assert annotations(TokenEvent("Yes [1]"), cited, done()) == [
        [{"type": "file_citation", "file_id": "tides.md", "filename": "Tides", "index": 3}]
    ]
    assert annotations(TokenEvent("Yes"), CitationEvent(1, "tides.md"), done()) == [
        [{"type": "file_citation", "file_id": "tides.md", "filename": "tides.md", "index": 3}]
    ]


def test_citation_outside_of_messages_is_kept() -> None:
    early, late = CitationEvent(1, "early"), CitationEvent(2, "late", answer_start=0, answer_end=1)
    call = ToolCallEvent("c", "find", {})
    (cited,) = annotations(early, TokenEvent("x"), call, late, done())
    assert [citation["file_id"] for citation in cited] == ["early", "late"]
    (cited,) = annotations(TokenEvent("x"), call, CitationEvent(3, "last"), done())
    assert [citation["file_id"] for citation in cited] == ["last"]


def test_citations_of_response_event_are_added_once() -> None:
    first, second = CitationEvent(1, "one"), CitationEvent(2, "two")
    (cited,) = annotations(TokenEvent("x"), first, ResponseEvent("x", (first, second)), done())
    assert [citation["file_id"] for citation in cited] == ["one", "two"]


# Waiting for a person

SUSPENDED = (
    TokenEvent("May I? "),
    ToolCallEvent("c1", "pay", {"amount": 40}),
    ApprovalRequestEvent("c1", "pay", {"amount": 40}, "it costs money"),
)
DECIDED = (
    ApprovalResponseEvent("c1", True, "fine", "ann"),
    ToolResultEvent("c1", "pay", True, "paid"),
    TokenEvent("Paid [1]."),
    CitationEvent(1, "bill", answer_start=7, answer_end=11),
    ResponseEvent("May I? Paid [1].", (CitationEvent(1, "bill", answer_start=7, answer_end=11),)),
    done(),
)


def test_waiting_turn_ends_its_response_with_the_request() -> None:
    encoder = WIRE.encoder()
    frames = list(map(encoder.frame, logged(SUSPENDED)))
    paused = encoder.pause()
    assert paused == encoder.pause()
    last = parse_events(b"".join(frames) + paused)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")
    assert last["response"]["output"][-1] == {
        "id": "mcpr_c1",
        "type": "mcp_approval_request",
        "server_label": "echo",
        "name": "pay",
        "arguments": '{"amount":40}',
    }
    assert encoder.response() == last["response"]
    # A later reader gets the same bytes and nothing of the next response.
    assert stream(*SUSPENDED, *DECIDED) == b"".join(frames) + paused


def test_decided_turn_continues_in_another_response() -> None:
    wire = OpenAIResponses(segment=2)
    encoder = wire.encoder()
    assert [encoder.frame(event) for event in logged(SUSPENDED)] == [b""] * 5
    assert encoder.pause() == b""
    events = events_of(*SUSPENDED, *DECIDED, wire=wire)
    whole = events[-1]["response"]
    assert (whole["id"], whole["previous_response_id"], whole["status"]) == ("resp_t1_2", "resp_t1", "completed")
    assert [item["type"] for item in whole["output"]] == ["function_call_output", "message"]
    assert answer(whole["output"]) == "Paid [1]."
    (annotation,) = whole["output"][1]["content"][0]["annotations"]
    assert annotation["index"] == 4
    assert (events[2]["type"], events[2]["event"]["type"]) == ("keepalive", "approval_response")


def test_turn_cancelled_while_waiting_ends_in_the_next_response() -> None:
    events = events_of(*SUSPENDED, done("cancelled"), wire=OpenAIResponses(segment=2))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.incomplete",
    ]
    assert events_of(*SUSPENDED, done("cancelled"))[-1]["type"] == "response.completed"


def test_pause_is_empty_unless_the_turn_waits() -> None:
    encoder = WIRE.encoder()
    for event in logged([*SUSPENDED, *DECIDED]):
        encoder.frame(event)
        assert bool(encoder.pause()) is (event.type == "approval_request")


def test_citations_of_earlier_response_are_not_repeated() -> None:
    cited = CitationEvent(1, "early", answer_start=0, answer_end=3)
    log = [SUSPENDED[0], cited, *SUSPENDED[1:], DECIDED[0], TokenEvent("Paid."), ResponseEvent("", (cited,)), done()]
    (item,) = response(*log, wire=OpenAIResponses(segment=2))["output"]
    assert item["content"][0]["annotations"] == []


# The wire


def test_echoed_fields_are_sent_and_change_the_key() -> None:
    wire = OpenAIResponses({"temperature": 0.2, "metadata": {"a": "b"}, "history": ["not echoed"]})
    response_object = response(done(), wire=wire)
    assert (response_object["temperature"], response_object["metadata"]) == (0.2, {"a": "b"})
    assert "history" not in response_object
    keys = {WIRE.key, wire.key, OpenAIResponses({"temperature": 0.3}).key, OpenAIResponses(segment=2).key}
    assert len(keys) == 4
    assert OpenAIResponses({"review": True}).key == WIRE.key == "openai_responses"


def test_segment_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="segment"):
        OpenAIResponses(segment=0)


@pytest.mark.parametrize("segment", [1, 2, 10, 123])
def test_response_id_is_parsed_back(segment: int) -> None:
    assert parse_response_id(response_id("0192-abc", segment)) == ("0192-abc", segment)


@pytest.mark.parametrize("text", ["", "resp_", "t1", "resp_t1_1", "resp_t1_0", "resp_t1_02", "resp_t1_2_2", "resp_é"])
def test_parse_of_other_id_returns_none(text: str) -> None:
    assert parse_response_id(text) is None


def test_controls_are_not_encoded() -> None:
    for control in (Gap(1, 2, TurnState()), Reset(), Reconnect(5)):
        assert WIRE.control(control) is None


def test_restart_is_refused() -> None:
    with pytest.raises(RestartedError):
        stream(TokenEvent("x"), RestartEvent(2, "worker_lost"))


def test_heartbeat_anywhere_in_the_stream_is_ignored() -> None:
    frames = [WIRE.heartbeat + frame for frame in map(WIRE.encoder().frame, logged([TokenEvent("x"), done()]))]
    assert parse(b"".join(frames)) == parse(stream(TokenEvent("x"), done()))


# Types of the openai library


def test_every_event_validates_with_the_openai_library() -> None:
    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    log = [event for event in FULL[2:] if not isinstance(event, RestartEvent | DoneEvent | ErrorEvent)]
    for segment in (1, 2):
        for event in events_of(*log, done(), wire=OpenAIResponses(segment=segment)):
            if event["type"] != "keepalive":
                known.validate_python(event)
            if "response" in event:
                Response.model_validate(event["response"])


# Turns without events


def test_turn_without_events_is_encoded_from_its_state() -> None:
    events = [
        TokenEvent("First. "),
        ToolCallEvent("c1", "find", {"q": "x"}),
        ToolResultEvent("c1", "find", True, [1]),
        TokenEvent("Then [1]."),
        CitationEvent(1, "d1", answer_start=7, answer_end=11),
        UsageEvent("m", 1, 2, 3, 4),
    ]
    for ending in ([done()], [ErrorEvent("It broke.", "agent_failed"), done("failed")], [done("cancelled")]):
        log = logged([*events, *ending])
        fold = TurnFold()
        for event in log:
            fold.add(event)
        encoder = WIRE.encoder()
        for event in log_of_state(fold.state(), log[0].at, log[-1].at):
            encoder.frame(event)
        assert _without_ids(encoder.response()) == _without_ids(response(*events, *ending))


def _without_ids(response_object: dict[str, Any]) -> dict[str, Any]:
    return {**response_object, "output": [{**item, "id": None} for item in response_object["output"]]}


# Any log

parts = st.one_of(
    texts.map(TokenEvent),
    texts.map(ReasoningEvent),
    texts.map(StatusEvent),
    st.builds(ToolCallEvent, texts, texts, st.dictionaries(texts, texts, max_size=2)),
    st.builds(ToolResultEvent, texts, texts, st.booleans(), texts),
    st.builds(CitationEvent, st.integers(1, 9), texts, title=texts, url=st.none() | texts),
)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["completed", "failed", "cancelled", "interrupted"])


@given(st.lists(parts, max_size=12), outcomes)
def test_any_log_is_read_back_in_order(events: list[Event], outcome: Outcome) -> None:
    body = stream(*events, done(outcome))
    assert body.isascii()
    assert [frame.data for frame in parse_carelessly(body)] == [frame.data for frame in parse(body)]
    read = parse_events(body)
    output = read[-1]["response"]["output"]
    text = "".join(event["delta"] for event in read if event["type"] == "response.output_text.delta")
    assert text == answer(output) == clean("".join(e.content for e in events if isinstance(e, TokenEvent)))
    tools = [item for item in output if item["type"] in ("function_call", "function_call_output")]
    assert [item.get("name", item.get("output")) for item in tools] == [
        clean(event.tool) if isinstance(event, ToolCallEvent) else clean(event.result)
        for event in events
        if isinstance(event, ToolCallEvent | ToolResultEvent)
    ]
    assert len({item["id"] for item in output}) == len(output)
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    assert len(set(calls)) == len(calls)
    if any(item["type"] == "message" for item in output):
        cited = {repr(encoded(event)) for event in events if isinstance(event, CitationEvent)}
        placed = [part for item in output if item["type"] == "message" for part in item["content"][0]["annotations"]]
        assert len(placed) == len(cited)


def clean(text: str) -> str:
    return clean_text(text)


def encoded(event: Event) -> Event:
    """Return the event as the log stores it."""
    return logged([event])[-1].event


@given(st.lists(parts, max_size=8))
def test_sequence_number_is_the_index_of_the_frame(events: list[Event]) -> None:
    *numbered, last, rest = stream(*events, done()).split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    for number, frame in enumerate(numbered):
        assert b'"sequence_number":%d,' % number in frame


def test_first_two_events_start_the_response() -> None:
    encoder = WIRE.encoder()
    log: list[LoggedEvent] = logged([])
    assert len(log) == len(OPENING)
    first, second = map(encoder.frame, log)
    assert first.count(b"\n\n") == 2
    assert second == b""
    assert encoder.response()["status"] == "in_progress"
