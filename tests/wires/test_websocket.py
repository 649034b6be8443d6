"""`websocket`: JSON messages that name their turn and position."""

import json

from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from turnwire.core.contracts.wires import Gap, Reconnect, Reset
from turnwire.core.log.codec import log_event
from turnwire.core.log.events import DoneEvent, RestartEvent, TokenEvent, ToolProgressEvent
from turnwire.core.log.turns import TurnState
from turnwire.wires.websocket.encoder import WebSocket, message

WIRE = WebSocket("t1")


def test_event_is_one_line_with_turn_and_position() -> None:
    assert WIRE.encoder().frame(log_event(TokenEvent("Zürich\n"), 7, 2)) == snapshot(
        b'{"type":"event","turn_id":"t1","position":7,"epoch":2,"event":{"type":"token","content":"Z\\u00fcrich\\n"}}\n'
    )


def test_done_event_is_encoded_like_the_others() -> None:
    read = json.loads(WIRE.encoder().frame(log_event(DoneEvent("completed", "s1", "t1"), 9, 1)))
    assert read["event"] == {"type": "done", "outcome": "completed", "session_id": "s1", "turn_id": "t1"}


def test_restart_is_encoded_as_an_event() -> None:
    read = json.loads(WIRE.encoder().frame(log_event(RestartEvent(4, "worker_lost"), 8, 2)))
    assert read["event"]["from_position"] == 4


def test_pause_is_empty_for_waiting_turn() -> None:
    assert WIRE.encoder().pause() == b""


def test_controls_name_the_turn_and_have_no_position() -> None:
    read = [
        json.loads(WIRE.control(control)) for control in (Gap(2, 9, TurnState(turn_id="t1")), Reset(), Reconnect(500))
    ]
    assert [(control["type"], control.get("turn_id")) for control in read] == [
        ("gap", "t1"),
        ("reset", "t1"),
        ("reconnect", None),
    ]
    assert (read[0]["after"], read[0]["first_kept"], read[0]["state"]["turn_id"]) == (2, 9, "t1")
    assert read[2]["retry_ms"] == 500


def test_key_differs_by_turn() -> None:
    assert WebSocket("t1").key != WebSocket("t2").key


@given(st.text(), st.text())
def test_message_with_any_text_is_one_line_of_ascii(content: str, turn_id: str) -> None:
    logged = log_event(ToolProgressEvent("c1", content), 3, 1)
    clean = turn_id.encode("utf-8", "replace").decode()
    frame = WebSocket(clean).encoder().frame(logged)
    assert frame.endswith(b"\n")
    assert message("error", text=clean).isascii()
    assert len(message("error", text=clean).splitlines()) == 1
    read = json.loads(WIRE.encoder().frame(logged))
    assert read["event"]["text"] == logged.event.text  # type: ignore[union-attr]
    assert WIRE.encoder().frame(logged).isascii()
    assert len(WIRE.encoder().frame(logged).decode().splitlines()) == 1
