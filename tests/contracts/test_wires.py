"""The wire contract: an encoder is a pure function of the log."""

import json

import pytest

from tests.contracts.wires import WIRES
from tests.core.samples import FULL
from tests.wires.sse import parse
from turnwire.assembly import build_socket_wires
from turnwire.core.contracts.wires import Gap, Reconnect, Reset, Wire
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent, decode_event, log_event
from turnwire.core.log.events import RestartEvent
from turnwire.core.log.turns import TurnState

LOG = [log_event(event, position, 1) for position, event in enumerate(FULL, 1)]
SETTLED = [logged for logged in LOG if not isinstance(logged.event, RestartEvent)]
CONTROLS = [Gap(2, 9, TurnState(turn_id="t1")), Reset(), Reconnect(500)]


@pytest.fixture(params=WIRES, ids=str)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


def log_for(wire: Wire) -> list[LoggedEvent]:
    """Return the log for a wire; a wire that keeps state gets one without void events."""
    return SETTLED if wire.keeps_state else LOG


def stream(wire: Wire, log: list[LoggedEvent]) -> bytes:
    encoder = wire.encoder()
    return b"".join(encoder.frame(logged) for logged in log)


def test_wire_name_is_its_key_in_the_table() -> None:
    assert {name: wire.name for name, wire in WIRES.items()} == {name: name for name in WIRES}


def test_same_log_gives_same_bytes(wire: Wire) -> None:
    log = log_for(wire)
    copy = [LoggedEvent(logged.position, logged.epoch, logged.at, logged.body) for logged in log]
    assert stream(wire, log) == stream(wire, copy) == stream(wire, log)


def test_wire_does_not_read_the_clock(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stream(wire, log_for(wire))
    for clock in ("time", "time_ns", "monotonic", "perf_counter"):
        monkeypatch.setattr(f"time.{clock}", lambda: pytest.fail("a wire read the clock"))
    assert stream(wire, log_for(wire)) == before


def test_keeps_state_tells_if_frames_depend_on_earlier_ones(wire: Wire) -> None:
    log = log_for(wire)
    alone = [wire.encoder().frame(logged) for logged in log]
    encoder = wire.encoder()
    assert (alone != [encoder.frame(logged) for logged in log]) is wire.keeps_state


def test_restart_is_encoded_or_refused(wire: Wire) -> None:
    if wire.keeps_state:
        with pytest.raises(RestartedError):
            stream(wire, LOG)
    else:
        assert all(map(wire.encoder().frame, LOG))


def test_heartbeat_is_allowed_before_the_first_frame(wire: Wire) -> None:
    assert wire.heartbeat
    assert wire.encoder().takes_heartbeat


def test_media_type_is_ascii(wire: Wire) -> None:
    assert "/" in wire.media_type
    assert wire.media_type.isascii()


def test_encoders_of_one_wire_are_independent(wire: Wire) -> None:
    first, second = wire.encoder(), wire.encoder()
    log = log_for(wire)
    mixed = [(first.frame(logged), second.frame(logged)) for logged in log]
    assert (
        b"".join(first_frame for first_frame, _ in mixed)
        == b"".join(second_frame for _, second_frame in mixed)
        == stream(wire, log)
    )


def test_control_is_encoded_or_none(wire: Wire) -> None:
    for control in CONTROLS:
        body = wire.control(control)
        assert body is None or len(body) > 0
        assert body == wire.control(control)


STATELESS = [name for name, wire in WIRES.items() if not wire.keeps_state]


@pytest.mark.parametrize("name", [name for name in STATELESS if name not in build_socket_wires()])
def test_stateless_event_stream_is_read_back_as_the_log(name: str) -> None:
    wire = WIRES[name]
    frames = parse(wire.opening + stream(wire, LOG) + wire.heartbeat)
    assert [frame.id for frame in frames] == [f"{logged.position}.{logged.epoch}" for logged in LOG]
    assert [decode_event(frame.data.encode()) for frame in frames] == FULL
    for control in CONTROLS:
        (frame,) = parse(wire.control(control) or b"")
        assert frame.id is None
        assert json.loads(frame.data)["type"] == type(control).__name__.lower()


@pytest.mark.parametrize("name", build_socket_wires())
def test_socket_messages_are_read_back_as_the_log(name: str) -> None:
    wire = WIRES[name]
    messages = [json.loads(line) for line in stream(wire, LOG).splitlines()]
    assert [(frame["turn_id"], frame["position"], frame["epoch"]) for frame in messages] == [
        ("t1", logged.position, logged.epoch) for logged in LOG
    ]
    assert [decode_event(json.dumps(frame["event"]).encode()) for frame in messages] == FULL
    for control in CONTROLS:
        frame = json.loads(wire.control(control) or b"")
        assert "position" not in frame
        assert frame["type"] == type(control).__name__.lower()
