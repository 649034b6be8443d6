"""What every wire promises: it is a function of the log, and of nothing else."""

import json

import pytest

from tests.contracts.wires import WIRES
from tests.core.samples import FULL
from tests.wires.sse import parse
from turnwire.assembly import SOCKET_WIRES
from turnwire.core.codec import LoggedEvent, decode_event, log_event
from turnwire.core.contracts import Gap, Reconnect, Reset, Wire
from turnwire.core.errors import RestartedError
from turnwire.core.events import RestartEvent
from turnwire.core.turns import TurnState

LOG = [log_event(event, position, 1) for position, event in enumerate(FULL, 1)]
SETTLED = [logged for logged in LOG if not isinstance(logged.event, RestartEvent)]
CONTROLS = [Gap(2, 9, TurnState(turn_id="t1")), Reset(), Reconnect(500)]


@pytest.fixture(params=WIRES, ids=str)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


def log_for(wire: Wire) -> list[LoggedEvent]:
    """A wire that keeps state is given a log in which nothing is void."""
    return SETTLED if wire.keeps_state else LOG


def stream(wire: Wire, log: list[LoggedEvent]) -> bytes:
    encoder = wire.encoder()
    return b"".join(encoder.frame(logged) for logged in log)


def test_a_wire_has_the_name_it_is_known_by() -> None:
    assert {name: wire.name for name, wire in WIRES.items()} == {name: name for name in WIRES}


def test_the_same_log_gives_the_same_bytes(wire: Wire) -> None:
    log = log_for(wire)
    again = [LoggedEvent(logged.position, logged.epoch, logged.at, logged.body) for logged in log]
    assert stream(wire, log) == stream(wire, again) == stream(wire, log)


def test_a_wire_does_not_look_at_the_clock(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stream(wire, log_for(wire))
    for clock in ("time", "time_ns", "monotonic", "perf_counter"):
        monkeypatch.setattr(f"time.{clock}", lambda: pytest.fail("a wire looked at the clock"))
    assert stream(wire, log_for(wire)) == before


def test_a_wire_says_whether_a_frame_depends_on_those_before(wire: Wire) -> None:
    log = log_for(wire)
    alone = [wire.encoder().frame(logged) for logged in log]
    encoder = wire.encoder()
    assert (alone != [encoder.frame(logged) for logged in log]) is wire.keeps_state


def test_a_restart_is_told_or_the_encoder_refuses_to_go_on(wire: Wire) -> None:
    if wire.keeps_state:
        with pytest.raises(RestartedError):
            stream(wire, LOG)
    else:
        assert all(map(wire.encoder().frame, LOG))


def test_a_heartbeat_is_taken_before_the_first_frame(wire: Wire) -> None:
    assert wire.heartbeat
    assert wire.encoder().takes_heartbeat


def test_a_wire_says_what_it_speaks(wire: Wire) -> None:
    assert "/" in wire.media_type
    assert wire.media_type.isascii()


def test_two_streams_of_one_wire_do_not_know_each_other(wire: Wire) -> None:
    first, second = wire.encoder(), wire.encoder()
    log = log_for(wire)
    mixed = [(first.frame(logged), second.frame(logged)) for logged in log]
    assert b"".join(one for one, _ in mixed) == b"".join(two for _, two in mixed) == stream(wire, log)


def test_a_control_is_said_or_the_connection_is_broken(wire: Wire) -> None:
    for control in CONTROLS:
        said = wire.control(control)
        assert said is None or len(said) > 0
        assert said == wire.control(control)


STATELESS = [name for name, wire in WIRES.items() if not wire.keeps_state]


@pytest.mark.parametrize("name", [name for name in STATELESS if name not in SOCKET_WIRES])
def test_what_is_read_back_from_an_event_stream_is_the_log(name: str) -> None:
    wire = WIRES[name]
    frames = parse(wire.opening + stream(wire, LOG) + wire.heartbeat)
    assert [frame.id for frame in frames] == [f"{logged.position}.{logged.epoch}" for logged in LOG]
    assert [decode_event(frame.data.encode()) for frame in frames] == FULL
    for control in CONTROLS:
        (told,) = parse(wire.control(control) or b"")
        assert told.id is None
        assert json.loads(told.data)["type"] == type(control).__name__.lower()


@pytest.mark.parametrize("name", SOCKET_WIRES)
def test_what_is_read_back_from_a_socket_is_the_log(name: str) -> None:
    wire = WIRES[name]
    messages = [json.loads(line) for line in stream(wire, LOG).splitlines()]
    assert [(told["turn_id"], told["position"], told["epoch"]) for told in messages] == [
        ("t1", logged.position, logged.epoch) for logged in LOG
    ]
    assert [decode_event(json.dumps(told["event"]).encode()) for told in messages] == FULL
    for control in CONTROLS:
        told = json.loads(wire.control(control) or b"")
        assert "position" not in told
        assert told["type"] == type(control).__name__.lower()
