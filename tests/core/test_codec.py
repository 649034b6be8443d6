"""Events as bytes: any event becomes one clean line of ASCII."""

import dataclasses
import datetime
import enum
import json
import uuid
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.samples import texts
from turnwire.core.errors import EventRefusedError
from turnwire.core.log.codec import ascii_json, clean_text, decode_event, encode_event, encode_token, log_event
from turnwire.core.log.events import (
    CitationEvent,
    CustomEvent,
    DoneEvent,
    Event,
    ReasoningEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): cleaned(item) for key, item in value.items()}
    return value


def assert_is_one_ascii_line(body: bytes) -> None:
    assert body.isascii()
    assert len(body.decode().splitlines()) == 1
    assert all(0x20 <= byte < 0x7F for byte in body)


@given(texts)
@example('\\u0000 \\\\u0000 \\b "')
@example("\ud83d\ude00")
def test_text_round_trips_after_cleaning(text: str) -> None:
    for make in (TokenEvent, ReasoningEvent, StatusEvent):
        event, body = encode_event(make(text))
        assert_is_one_ascii_line(body)
        assert event == make(clean_text(text))
        assert decode_event(body) == event
        assert json.loads(body) == {"type": body[9:].split(b'"')[0].decode(), **_only_field(event)}


def _only_field(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__ if name != "agent_path"}


@given(texts)
def test_encode_token_writes_the_same_bytes_as_encode_event(text: str) -> None:
    event, body = encode_event(TokenEvent(text))
    assert encode_token(text) == (event.content, body)  # type: ignore[union-attr]


@given(plain)
def test_tool_result_round_trips_after_cleaning(value: Any) -> None:
    event, body = encode_event(ToolResultEvent("c1", "tool", True, value))
    assert_is_one_ascii_line(body)
    assert decode_event(body) == event
    assert event.result == cleaned(value)  # type: ignore[union-attr]


@given(texts)
def test_clean_text_removes_only_control_characters_and_lone_surrogates(text: str) -> None:
    remaining = [character for character in text if character in "\t\r\n" or not _is_control(character)]
    assert clean_text(text) == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in remaining)
    assert clean_text(clean_text(text)) == clean_text(text)


def _is_control(character: str) -> bool:
    return ord(character) < 0x20 or 0x7F <= ord(character) <= 0x9F


@given(texts)
def test_ascii_json_of_any_text_is_one_line(text: str) -> None:
    body = ascii_json({"text": clean_text(text)})
    assert body.isascii()
    assert b"\n" not in body
    assert json.loads(body) == {"text": clean_text(text)}


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**70), 10**40])
def test_big_integer_is_not_rounded(number: int) -> None:
    event, body = encode_event(CustomEvent("n", number))
    assert json.loads(body)["data"] == number
    assert event.data == decode_event(body).data == number  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_become_null(number: float) -> None:
    event, body = encode_event(CustomEvent("n", {"value": number, "\x00": 1}))
    assert event.data["value"] is None  # type: ignore[union-attr]
    assert json.loads(body)["data"]["value"] is None


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: str


class Model:
    """An object with the interface of a pydantic model."""

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"mode": mode, "text": "a\x00b"}


class Secretive:
    def __repr__(self) -> str:
        return "password=hunter2"


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (Model(), {"mode": "json", "text": "ab"}),
        (Point(1, "é"), {"x": 1, "y": "é"}),
        (Colour.RED, "red"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ((1, 2), [1, 2]),
        ({1: "one"}, {"1": "one"}),
        (b"\x00\xff", "AP8="),
        (Secretive(), "<Secretive>"),
        ([object()], ["<object>"]),
        (ValueError("a secret"), "<ValueError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_foreign_object_becomes_a_plain_value_or_its_name(value: Any, decoded: Any) -> None:
    event, body = encode_event(ToolResultEvent("c1", "tool", True, value))
    assert event.result == decoded  # type: ignore[union-attr]
    assert decode_event(body) == event


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize("value", [_endless(), ["\x00", _endless()], ["\ud800", _endless()]])
def test_value_that_json_cannot_represent_is_refused(value: Any) -> None:
    with pytest.raises(EventRefusedError):
        encode_event(CustomEvent("n", value))


@pytest.mark.parametrize(
    "event",
    [
        None,
        5,
        {"type": "token", "content": "x"},
        TokenEvent(None),  # type: ignore[arg-type]
        TokenEvent(5),  # type: ignore[arg-type]
        StatusEvent(5),  # type: ignore[arg-type]
        ReasoningEvent(None),  # type: ignore[arg-type]
        ToolCallEvent("c1", "tool", None),  # type: ignore[arg-type]
        CitationEvent(1, "d1", score=object),  # type: ignore[arg-type]
        UsageEvent(input_tokens=1.5),  # type: ignore[arg-type]
        TokenEvent("x", agent_path=(1,)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_event_that_cannot_be_decoded_is_refused(event: Any) -> None:
    with pytest.raises(EventRefusedError):
        encode_event(event)


@pytest.mark.parametrize("content", [None, 5, b"bytes", ["a"]])
def test_token_that_is_not_a_str_is_refused(content: Any) -> None:
    with pytest.raises(EventRefusedError):
        encode_token(content)


def test_change_of_an_event_after_logging_does_not_reach_the_log() -> None:
    args: dict[str, Any] = {"paths": ["a"], "deep": {"x": 1}}
    logged = log_event(ToolCallEvent("c1", "tool", args), 3, 1)
    args["paths"].append("b")
    args["deep"]["x"] = 2
    args["new"] = True
    assert logged.event == decode_event(logged.body) == ToolCallEvent("c1", "tool", {"paths": ["a"], "deep": {"x": 1}})


def test_only_done_is_the_last_event() -> None:
    reasons = (None, "a\x00b", "é\u2028", "\ud800", "\\u0000")
    for done in (DoneEvent("failed", "s1", "t1", reason=reason) for reason in reasons):
        assert log_event(done, 9, 1).is_last
    for other in (TokenEvent('{"type":"done"}'), CustomEvent("done"), CustomEvent("x", {"type": "done"})):
        assert not log_event(other, 9, 1).is_last


def test_agent_path_is_kept_and_cleaned() -> None:
    event, body = encode_event(TokenEvent("x", agent_path=("outer\x00", "inner")))
    assert event.agent_path == decode_event(body).agent_path == ("outer", "inner")
    assert b"agent_path" not in encode_event(TokenEvent("x"))[1]
