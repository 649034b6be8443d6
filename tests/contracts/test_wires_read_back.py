"""The read-back contract: what a client reads from any wire is what the log holds, for any log."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contracts.log_strategies import DENSE, answers, ending, log_of, logs, restarted_logs
from tests.contracts.turn_summary import TurnSummary, fold, whole_frames
from tests.contracts.turns import append, claimed, whole_log
from tests.contracts.wire_readers import READERS, Reader
from tests.contracts.wires import WIRES
from tests.examples import examples
from tests.wires.sse import parse, parse_carelessly
from turnwire.assembly import build_socket_wires, build_wires
from turnwire.core.contracts.wires import Wire
from turnwire.core.log.codec import SUSPENSION_EVENTS, LoggedEvent, begins_wait
from turnwire.core.log.events import Event, Outcome, RestartEvent
from turnwire.server.streams.resume import BYTES, FRAMES, encoder_at, find_point, settled_encoder, void_of
from turnwire.stores.memory import MemoryStore
from turnwire.wires.openai.responses.encoder import OpenAIResponses

EXAMPLES = settings(max_examples=examples(15))
HAS_NO_CURSOR = [name for name, reader in READERS.items() if reader.cursor is None]
HAS_CURSOR = [name for name, reader in READERS.items() if reader.cursor]
_SHARES = 100_000


def encode(wire: Wire, log: Sequence[LoggedEvent]) -> bytes:
    """Return the bytes that a reader has at the end of this log, with the pause if the turn waits."""
    restarts = [(logged.position, logged.event) for logged in log if isinstance(logged.event, RestartEvent)]
    void = tuple(range(event.from_position + 1, position + 1) for position, event in restarts)
    encoder = settled_encoder(wire, void if wire.keeps_state else ())
    body = b"".join(map(encoder.frame, log))
    return body + encoder.pause()


def streams(name: str, log: Sequence[LoggedEvent]) -> list[bytes]:
    """Return all streams that a client reads of a turn: one per response."""
    if name != OpenAIResponses.name:
        return [encode(WIRES[name], log)]
    bodies: list[bytes] = []
    while body := encode(OpenAIResponses(segment=len(bodies) + 1), log):
        bodies.append(body)
    return bodies


def expected_summary(log: Sequence[LoggedEvent]) -> TurnSummary:
    return fold(json.loads(logged.body) for logged in log)


def test_every_offered_wire_has_a_reader() -> None:
    assert {*build_wires(), *build_socket_wires()} == set(READERS) == set(WIRES)


@pytest.mark.parametrize("name", READERS)
@EXAMPLES
@given(log=logs | restarted_logs())
@example(log=log_of(DENSE))
def test_any_log_is_read_back(name: str, log: list[LoggedEvent]) -> None:
    reader, bodies = READERS[name], streams(name, log)
    summary = reader.read(bodies)
    if name == OpenAIResponses.name:
        check_annotations(summary, expected_summary(log), bodies)
    assert reader.reduce(summary) == reader.reduce(expected_summary(log))


def check_annotations(summary: TurnSummary, expected: TurnSummary, bodies: list[bytes]) -> None:
    """Check that citations are annotations, all of them if every response has text to annotate."""
    sources = {(None, None if url else document, url or None) for _, document, url in expected.citations}
    assert set(summary.citations) <= sources
    if summary.outcome != "running" and all(b"response.output_text.delta" in body for body in bodies):
        assert set(summary.citations) == sources


@pytest.mark.parametrize("name", READERS)
@EXAMPLES
@given(log=logs, peeks=st.sets(st.integers(0, 20)))
def test_calls_of_pause_change_no_byte(name: str, log: list[LoggedEvent], peeks: set[int]) -> None:
    encoder, body = WIRES[name].encoder(), b""
    for number, logged in enumerate(log):
        if number in peeks:
            encoder.pause()
        body += encoder.frame(LoggedEvent(logged.position, logged.epoch, logged.at, logged.body))
    assert body + encoder.pause() == encode(WIRES[name], log)


@pytest.mark.parametrize("name", READERS)
@EXAMPLES
@given(log=logs)
@example(log=log_of(DENSE))
def test_stream_continues_with_the_bytes_of_the_pause(name: str, log: list[LoggedEvent]) -> None:
    encoder, whole, body = WIRES[name].encoder(), encode(WIRES[name], log), b""
    for number, logged in enumerate(log):
        body += encoder.frame(logged)
        if begins_wait(logged) and not any(later.type in SUSPENSION_EVENTS for later in log[number + 1 : number + 2]):
            assert whole.startswith(body + encoder.pause())


@pytest.mark.parametrize("name", READERS)
@EXAMPLES
@given(log=logs)
@example(log=log_of(DENSE))
def test_hostile_text_adds_no_frame(name: str, log: list[LoggedEvent]) -> None:
    wire, has_ended = WIRES[name], log[-1].is_last
    for body in streams(name, log):
        if READERS[name].is_sse:
            assert body.isascii()
            assert not set(body) & {*range(10), *range(11, 32), 127}
            assert parse(body) == parse_carelessly(body)
            frames = body.count(b"\n\n")
            assert frames == len(parse(body))
        elif name in build_socket_wires():
            assert body.decode("ascii").splitlines() == body.decode().split("\n")[:-1]
            assert body.count(b"\n") == len(log)
        else:
            assert (body.count(b"\x1d"), body.count(b"\x1e")) == (1, 1) or not has_ended
            assert body.partition(b"\x1d")[0].isascii()
            assert body.partition(b"\x1e")[2].isascii()
    assert wire.name == name


@pytest.mark.parametrize("name", HAS_NO_CURSOR)
@EXAMPLES
@given(log=logs, data=st.data())
def test_cut_stream_without_cursor_reads_as_unfinished(name: str, log: list[LoggedEvent], data: st.DataObject) -> None:
    body = encode(WIRES[name], log)
    cut = data.draw(st.integers(0, len(body) - 1))
    outcome = READERS[name].read([body[:cut]]).outcome
    # A turn that has waited ended a segment there, and a client asks for the next one.
    assert outcome == "running" or (outcome == "waiting" and any(map(begins_wait, log)))
    assert READERS[name].read([encode(WIRES[name], log)]) == READERS[name].read([body])


# Resuming


async def stored(answer: tuple[list[Event], Outcome | None]) -> tuple[MemoryStore, str]:
    yielded, outcome = answer
    store = MemoryStore()
    record = await claimed(store)
    events = [*yielded, *ending(yielded, outcome, record.session_id, record.id)]
    if events:
        await append(store, record.id, 1, 3, *events, end=outcome is not None)
    return store, record.id


async def resume(store: MemoryStore, turn_id: str, wire: Wire, reader: Reader, received: bytes) -> bytes:
    """Return all that a client has after it lost its connection with these bytes and resumed."""
    if reader.cursor == "byte":
        point = await find_point(store, turn_id, wire, BYTES, len(received))
    elif reader.cursor == "frame":
        received = whole_frames(received)
        point = await find_point(store, turn_id, wire, FRAMES, received.count(b"\n\n"))
    else:
        if reader.is_sse:
            received = whole_frames(received)
            seen = [int((frame.id or "").partition(".")[0]) for frame in parse(received)]
        else:
            received = received[: received.rfind(b"\n") + 1]
            seen = [json.loads(line)["position"] for line in received.splitlines()]
        return received + b"".join(map(wire.encoder().frame, await whole_log(store, turn_id, max(seen, default=0))))
    encoder = await encoder_at(store, turn_id, wire, point.position, await void_of(store, turn_id))
    rest = b"".join(map(encoder.frame, await store.read(turn_id, point.position, 1_000)))
    return received + point.rest + rest


@pytest.mark.parametrize("name", HAS_CURSOR)
@EXAMPLES
@given(answer=answers(), data=st.data())
async def test_resume_after_a_cut_at_any_byte_gives_the_same_stream(
    name: str, answer: tuple[list[Event], Outcome | None], data: st.DataObject
) -> None:
    store, turn_id = await stored(answer)
    wire = WIRES[name]
    whole = b"".join(map(wire.encoder().frame, await whole_log(store, turn_id)))
    # As a share: the length depends on how long the turn took, and what is drawn must not.
    cut = data.draw(st.integers(0, _SHARES)) * len(whole) // _SHARES
    assert await resume(store, turn_id, wire, READERS[name], whole[:cut]) == whole
