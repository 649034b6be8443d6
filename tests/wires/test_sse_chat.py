"""`sse_chat`: the bytes of the stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import texts
from tests.wires.sse import parse, parse_carelessly
from turnwire.core.contracts.wires import Gap, Reconnect, Reset
from turnwire.core.log.codec import log_event
from turnwire.core.log.events import CustomEvent, Event, StatusEvent, TokenEvent, ToolCallEvent
from turnwire.core.log.turns import TurnState
from turnwire.wires.frames import COMMENT_HEARTBEAT, control_frame, frame
from turnwire.wires.sse_chat.encoder import SseChat

WIRE = SseChat()


def framed(event: Event, position: int = 3, epoch: int = 1) -> bytes:
    return WIRE.encoder().frame(log_event(event, position, epoch))


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (TokenEvent("a"), b'id: 3.1\ndata: {"type":"token","content":"a"}\n\n'),
        (TokenEvent("h\u00e9\n\u2028"), b'id: 3.1\ndata: {"type":"token","content":"h\\u00e9\\n\\u2028"}\n\n'),
        (TokenEvent("\U0001f600"), b'id: 3.1\ndata: {"type":"token","content":"\\ud83d\\ude00"}\n\n'),
        (
            ToolCallEvent("c1", "find", {"q": "x"}, agent_path=("helper",)),
            b'id: 3.1\ndata: {"type":"tool_call","call_id":"c1","tool":"find","args":{"q":"x"}'
            b',"agent_path":["helper"]}\n\n',
        ),
    ],
)
def test_frame_is_an_id_and_one_line_of_data(event: Event, body: bytes) -> None:
    assert framed(event) == body


def test_id_is_position_and_epoch() -> None:
    assert framed(TokenEvent("a"), 1234, 56).startswith(b"id: 1234.56\n")


def test_id_in_a_session_stream_names_the_turn() -> None:
    body = WIRE.session_encoder("t-1").frame(log_event(TokenEvent("a"), 7, 2))
    assert body == b'id: t-1:7\ndata: {"type":"token","content":"a"}\n\n'


def test_heartbeats_and_openings_are_comments() -> None:
    for comment in (WIRE.heartbeat, WIRE.opening, COMMENT_HEARTBEAT):
        assert comment.startswith(b":")
        assert comment.endswith(b"\n\n")
        assert comment.count(b"\n") == 2
        assert parse(comment) == []


@pytest.mark.parametrize(
    ("control", "body"),
    [
        (Reset(), b'data: {"type":"reset"}\n\n'),
        (Reconnect(750), b'retry: 750\ndata: {"type":"reconnect","retry_ms":750}\n\n'),
        (
            Gap(3, 9, TurnState(turn_id="t1", text="é")),
            b'data: {"type":"gap","after":3,"first_kept":9,"state":{"turn_id":"t1","text":"\\u00e9","steps":[]'
            b',"citations":[],"tools_used":[],"timings":{}}}\n\n',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_control_frames_have_no_id(control: Any, body: bytes) -> None:
    assert WIRE.control(control) == body
    (read,) = parse(body)
    assert read.id is None


def test_frame_without_id_has_only_data() -> None:
    assert frame(b"{}") == b"data: {}\n\n"
    assert frame(b"{}", b"1.1") == b"id: 1.1\ndata: {}\n\n"


FORGERIES = [
    "\n\ndata: {}\n\n",
    '"}\n\nid: 9.9\ndata: {"type":"done"}\n\n',
    "\r\rid: 1\r\rdata: x\r\r",
    "\u2028\u2028data: x\u2029\u2029",
    "\x85\x85data: x\x1e\x1d",
    "\x00data: x",
    "\ufeffid: 5",
]


@given(st.lists(texts | st.sampled_from(FORGERIES), min_size=1, max_size=5))
def test_hostile_text_cannot_forge_a_frame(hostile: list[str]) -> None:
    log = [log_event(TokenEvent(text), position, 1) for position, text in enumerate(hostile, 3)]
    log += [log_event(CustomEvent(text, {text: [text]}), position, 1) for position, text in enumerate(hostile, 100)]
    encoder = WIRE.encoder()
    body = WIRE.opening + b"".join(encoder.frame(logged) + WIRE.heartbeat for logged in log)
    assert body.isascii()
    for read in (parse, parse_carelessly):
        frames = read(body)
        assert [each.id for each in frames] == [f"{logged.position}.1" for logged in log]
        assert [each.data.encode() for each in frames] == [logged.body for logged in log]


@given(texts, texts)
def test_hostile_text_cannot_forge_a_control_frame(text: str, more: str) -> None:
    state = TurnState(text=log_text(text), status=log_text(more))
    (read,) = parse(WIRE.control(Gap(1, 5, state)))
    assert read == parse_carelessly(WIRE.control(Gap(1, 5, state)))[0]
    assert json.loads(read.data)["state"].get("text", "") == state.text
    (other,) = parse(control_frame("x", {"text": log_text(text)}))
    assert json.loads(other.data) == {"type": "x", "text": log_text(text)}


def log_text(text: str) -> str:
    """Return the text as the log stores it."""
    event = log_event(StatusEvent(text), 3, 1).event
    assert isinstance(event, StatusEvent)
    return event.text
