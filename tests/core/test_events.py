"""Events: the names that are stored on disk and sent to clients."""

import re
from typing import Any, get_args

import msgspec
import pytest

from tests.core.samples import FULL
from turnwire.core.log.codec import decode_event, encode_event
from turnwire.core.log.events import Event, ResponseEvent, TokenEvent, UsageEvent

EVENTS: tuple[type[Any], ...] = get_args(Event)

# Released names keep their meaning for ever: only add lines here, or fields at the end of a line.
RELEASED = {
    "session": "session_id turn_id agent forked_from forked_at",
    "message": "content by channel attachments metadata",
    "input": "content by channel turn_id mode",
    "status": "text",
    "handoff": "agent",
    "search": "step_id phase tool query page hits ms",
    "review": "step_id iteration verdict feedback kept dropped missing next_queries rounds_left matched method",
    "tool_call": "call_id tool args runs_on",
    "tool_progress": "call_id text fraction data",
    "tool_result": "call_id tool success result ms",
    "reasoning": "content",
    "token": "content",
    "citation": "index document_id chunk_id title url page_number supporting_quote source_tool score"
    " source_start source_end answer_start answer_end heading",
    "approval_request": "call_id tool args reason editable",
    "approval_response": "call_id approved reason by args",
    "question": "id prompt schema call_id",
    "reply": "question_id value declined reason by",
    "restart": "from_position reason",
    "custom": "name data",
    "usage": "model input_tokens output_tokens cached_input_tokens reasoning_tokens",
    "response": "content citations mode tools_used usage timings model model_error",
    "error": "error code retryable",
    "done": "outcome session_id turn_id reason joined",
}


def test_event_type_is_the_snake_case_class_name_without_event() -> None:
    for event in EVENTS:
        words = re.findall("[A-Z][a-z]*", event.__name__.removesuffix("Event"))
        assert event.__name__.endswith("Event")
        assert event.__struct_config__.tag == "_".join(words).lower()
        assert event.__struct_config__.tag_field == "type"


def test_released_names_are_unchanged() -> None:
    named = {
        event.__struct_config__.tag: " ".join(
            field for field in event.__struct_encode_fields__ if field != "agent_path"
        )
        for event in EVENTS
    }
    assert named == RELEASED


@pytest.mark.parametrize("event", FULL, ids=lambda event: type(event).__name__)
def test_every_event_round_trips_through_the_log(event: Event) -> None:
    logged, body = encode_event(event)
    assert decode_event(body) == logged == event
    named = msgspec.json.decode(body)
    assert list(named) == ["type", *RELEASED[named["type"]].split()]


def test_samples_include_every_event() -> None:
    assert [type(event) for event in FULL] == list(EVENTS)


def test_events_are_frozen() -> None:
    for event in FULL:
        with pytest.raises(AttributeError):
            event.agent_path = ("x",)  # type: ignore[misc]


def test_absent_numbers_are_not_encoded() -> None:
    assert encode_event(UsageEvent(output_tokens=0))[1] == b'{"type":"usage","output_tokens":0}'
    assert encode_event(UsageEvent())[1] == b'{"type":"usage"}'


def test_response_always_encodes_citations_and_tools() -> None:
    assert encode_event(ResponseEvent("a"))[1] == b'{"type":"response","content":"a","citations":[],"tools_used":[]}'


def test_unknown_field_is_ignored() -> None:
    assert decode_event(b'{"type":"token","content":"a","shade":"blue"}') == TokenEvent("a")
