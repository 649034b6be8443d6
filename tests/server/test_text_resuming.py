"""Resuming a text stream by byte: in every phase, live or finished, also in the middle of a character."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.turns import append, claimed, done
from tests.examples import examples, some
from tests.server.conftest import Serve, StoreKind
from tests.server.text_client import CITATION, LINES, SEARCH, begun, finished, messages, phases, resume
from tests.serving import PATIENCE, Part, Puppet, Served, error_of, let_time_pass, until, within
from turnwire.core.log.events import (
    CustomEvent,
    ErrorEvent,
    Event,
    Outcome,
    ResponseEvent,
    RestartEvent,
    StatusEvent,
    TokenEvent,
)
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.streams.resume import BYTES, encoder_at, find_point, void_of
from turnwire.stores.memory import MemoryStore
from turnwire.wires.three_phase_text.routes import THREE_PHASE_TEXT


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as entered:
        yield entered


def path_to(turn_id: str, **params: Any) -> str:
    return str(httpx.URL(f"/v1/turns/{turn_id}/events", params={"wire": "three_phase_text", **params}))


async def running(server: Served, puppet: Puppet, *lines: Event | str) -> tuple[str, Part]:
    """A turn that has said this and goes on, and that nobody reads."""
    await server.http.post("/v1/sessions", json={"id": "s"})
    turn_id = (await server.http.post("/v1/sessions/s/turns", json={"message": "Hello"})).json()["turn_id"]
    part = await puppet.part()
    part.say(*lines)
    await server.reached(turn_id, 2 + len(lines))
    return turn_id, part


# Every byte


async def test_a_finished_turn_is_resumed_from_a_byte_in_every_phase(server: Served, puppet: Puppet) -> None:
    turn_id, body = await finished(server, puppet)
    assert len(phases(body)[2]["events"]) == 1
    answer = body.index(b"\x1d")
    for offset in (*range(0, answer - 3, 29), *range(answer - 3, answer + 70), *range(answer + 70, len(body), 29)):
        response = await server.http.get(path_to(turn_id, offset=offset))
        assert response.status_code == 200
        assert response.content == body[offset:], offset


@pytest.mark.parametrize(
    "lines",
    [LINES[:1], LINES[:2], LINES[:3], LINES[:4], LINES[:5], LINES],
    ids=["one line", "all lines", "one token", "two tokens", "a late event", "all"],
)
async def test_a_running_turn_is_resumed_from_every_byte_there_is(
    server: Served, puppet: Puppet, stack: AsyncExitStack, lines: tuple[Event | str, ...]
) -> None:
    stream, part = await begun(stack, server, puppet, *lines)
    await server.reached(stream.turn_id, 2 + len(lines))
    size = await size_so_far(server, stream.turn_id)
    every = some(range(size), 8)
    readers = [await stack.enter_async_context(resume(server, stream.turn_id, offset)) for offset in (*every, size)]
    part.say("more – ", StatusEvent("late"), "and more")
    part.end()
    body = await stream.rest()
    assert len(body) > size
    for offset, reader in zip((*every, size), readers, strict=True):
        assert await reader.rest() == body[offset:], offset


async def size_so_far(server: Served, turn_id: str) -> int:
    error = error_of(await server.http.get(path_to(turn_id, offset=10**9)), 416)
    assert error["code"] == "bad_offset"
    return error["size"]


async def test_replay_continues_live_without_gap_or_repetition(server: Served, puppet: Puppet) -> None:
    """Readers come back, each at another byte, at every moment of a turn that never pauses."""
    turn_id, part = await running(server, puppet, *SEARCH)

    async def read(offset: int) -> bytes:
        async with resume(server, turn_id, offset) as reader:
            return await reader.rest()

    async with asyncio.TaskGroup() as group:
        readers = []
        for number in range(30):
            part.say(*(f"{number}.{piece} – " for piece in range(25)))
            readers.append((number * 7, group.create_task(read(number * 7))))
            await asyncio.sleep(0)
        part.end()
    whole = await read(0)
    assert all(reader.result() == whole[offset:] for offset, reader in readers)


async def test_readers_of_a_running_turn_share_what_is_encoded(
    server: Served, puppet: Puppet, stack: AsyncExitStack
) -> None:
    first, part = await begun(stack, server, puppet, *LINES[:3])
    await first.until(b"water ")
    second = await stack.enter_async_context(resume(server, first.turn_id))
    third = await stack.enter_async_context(resume(server, first.turn_id, len(first.body)))
    await second.until(b"water ")
    assert server.turnwire.streams.pump_count == 1
    part.say("for all")
    part.end()
    body = await first.rest()
    assert await second.rest() == body
    assert await third.rest() == body[body.index(b"for all") :]
    await until(lambda: not server.turnwire.streams.pump_count)


async def test_reader_ahead_of_the_pump_waits_for_it(server: Served, puppet: Puppet) -> None:
    """On coming back to a long turn that nobody reads, the log is read again from its start."""
    words = [f"{number} – " for number in range(2_600)]
    turn_id, part = await running(server, puppet, *SEARCH, *words)
    size = await size_so_far(server, turn_id)
    for offset in (size, size - 1, size // 2, 3):
        async with resume(server, turn_id, offset) as reader:
            await reader.size(size - offset)
            part.say("x")
            size += 1
            assert (await reader.size(size - offset)).endswith(b"x")
            assert len(reader.body) == size - offset
    async with resume(server, turn_id, size) as late, resume(server, turn_id) as early:
        part.end()
        body = await early.rest()
        assert await late.rest() == body[size:]
    assert phases(body)[1] == "".join(words) + "xxxx"


async def test_after_accepts_positions_on_the_text_wire(server: Served, puppet: Puppet) -> None:
    turn_id, body = await finished(server, puppet)
    last = (await server.snapshot(turn_id))["position"]
    pieces = [(await server.http.get(path_to(turn_id, after=position))).content for position in range(last)]
    assert pieces[0] == pieces[2] == body
    assert pieces[3] == body[body.index(b"\n") + 1 :]
    assert pieces[4].startswith(b"\x1dHigh water ")
    assert pieces[5].startswith(b"is at noon")
    assert pieces[last - 1].startswith(b"\x1e{")
    assert all(body.endswith(piece) for piece in pieces)
    assert (await server.http.get(path_to(turn_id, after=last))).status_code == 204


# What cannot be resumed


async def test_a_finished_turn_that_was_read_to_its_end_is_a_204(server: Served, puppet: Puppet) -> None:
    turn_id, body = await finished(server, puppet)
    response = await server.http.get(path_to(turn_id, offset=len(body)))
    assert (response.status_code, response.content) == (204, b"")


async def test_offset_past_the_end_is_a_416_with_the_size(server: Served, puppet: Puppet) -> None:
    turn_id, body = await finished(server, puppet)
    response = await server.http.get(path_to(turn_id, offset=len(body) + 1))
    error = error_of(response, 416)
    assert (error["code"], error["size"]) == ("bad_offset", len(body))
    assert f"offset={len(body)}" in error["message"]
    assert response.headers["content-range"] == f"bytes */{len(body)}"


async def test_offset_ahead_of_a_running_turn_is_a_416(server: Served, puppet: Puppet) -> None:
    turn_id, part = await running(server, puppet, "é")
    assert await size_so_far(server, turn_id) == 3
    error_of(await server.http.get(path_to(turn_id, offset=4)), 416)
    part.end()


@pytest.mark.parametrize("offset", ["-1", "1.5", "x", "", " 1", "½", "٣", "9" * 16])
async def test_invalid_offset_is_refused(serve: Serve, puppet: Puppet, offset: str) -> None:
    async with serve() as server:
        turn_id, _ = await running(server, puppet)
        assert error_of(await server.http.get(path_to(turn_id, offset=offset)), 422)["message"].startswith("offset")


@pytest.mark.parametrize("query", ["offset=0", "wire=sse_chat&offset=0", "wire=sse_chat&offset=5"])
async def test_an_offset_is_refused_on_a_wire_that_has_ids(serve: Serve, puppet: Puppet, query: str) -> None:
    async with serve() as server:
        turn_id, _ = await running(server, puppet)
        assert "offset" in error_of(await server.http.get(f"/v1/turns/{turn_id}/events?{query}"), 422)["message"]


async def test_offset_with_another_cursor_is_refused(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        turn_id, _ = await running(server, puppet)
        error_of(await server.http.get(path_to(turn_id, offset=0, after=1)), 422)
        error_of(await server.http.get(path_to(turn_id, offset=0, wait=1)), 422)
        error_of(await server.http.get(path_to(turn_id, offset=0), headers={"Last-Event-ID": "1.0"}), 422)


async def test_unknown_position_is_a_409(server: Served, puppet: Puppet) -> None:
    turn_id, _ = await finished(server, puppet)
    for cursor in ("99", "4.7"):
        assert error_of(await server.http.get(path_to(turn_id, after=cursor)), 409)["code"] == "reset"


async def test_events_past_their_retention_are_a_410_before_the_first_byte(server: Served, puppet: Puppet) -> None:
    turn_id, body = await finished(server, puppet)
    last = (await server.snapshot(turn_id))["position"]
    await server.turnwire.store.maintain(expire_before=2**60)
    for cursor in ({}, {"offset": 0}, {"offset": 7}, {"offset": len(body)}, {"after": 3}, {"after": last - 1}):
        response = await server.http.get(path_to(turn_id, **cursor))
        error = error_of(response, 410)
        assert error["code"] == "events_gone", cursor
        assert "snapshot" in error["message"]
    assert (await server.http.get(path_to(turn_id, after=last))).status_code == 204


# A restart


async def test_restart_breaks_the_connection_and_the_next_stream_skips_void_events(
    server: Served, puppet: Puppet, stack: AsyncExitStack
) -> None:
    stream, part = await begun(stack, server, puppet, StatusEvent("a"), StatusEvent("b"), "Void ", "text", CITATION)
    await stream.until(b"text")
    part.say(RestartEvent(3, "worker_lost"))
    broken = await stream.broken()
    await until(lambda: not server.turnwire.streams.pump_count)
    valid_size = broken.index(b"\n") + 1
    async with resume(server, stream.turn_id) as again:
        await again.until(b"\n")
        part.say(StatusEvent("c"), "Good ", "text")
        await again.until(b"Good text")
        error = error_of(await server.http.get(path_to(stream.turn_id, offset=len(broken))), 416)
        assert (error["code"], error["size"]) == ("bad_offset", valid_size)
        assert f"offset={valid_size}" in error["message"]
        part.end()
        body = await again.rest()
    assert body[:valid_size] == broken[:valid_size]
    lines, answer, trailer = phases(body)
    assert [line["text"] for line in lines] == ["a", "c"]
    assert (answer, trailer["citations"]) == ("Good text", [])
    for offset in range(valid_size + 1):
        assert (await server.http.get(path_to(stream.turn_id, offset=offset))).content == body[offset:]
    error_of(await server.http.get(path_to(stream.turn_id, offset=valid_size + 1)), 416)


async def test_void_position_is_a_409(server: Served, puppet: Puppet) -> None:
    turn_id, body = await finished(server, puppet, StatusEvent("a"), "Void", RestartEvent(3, "worker_lost"), "Good")
    assert phases(body)[1] == "Good"
    for position in (2, 3, 5, 6):
        response = await server.http.get(path_to(turn_id, after=position))
        assert response.status_code == 200
        assert body.endswith(response.content)
    assert error_of(await server.http.get(path_to(turn_id, after=4)), 409)["code"] == "reset"


async def test_other_wires_continue_after_a_restart(server: Served, puppet: Puppet, stack: AsyncExitStack) -> None:
    stream, part = await begun(stack, server, puppet, "Void")
    frames = await stack.enter_async_context(server.events(stream.turn_id))
    part.say(RestartEvent(2, "worker_lost"), "Good")
    part.end()
    await stream.broken()
    assert [frame.type for frame in await frames.rest()][-5:] == ["token", "restart", "token", "response", "done"]


# Idle streams


def heartbeats_due(server: Served) -> Any:
    (connection,) = server.turnwire.streams.connections
    return connection


async def test_an_idle_stream_has_a_blank_line_in_phase_1_and_nothing_in_phase_2(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=0.03) as server, AsyncExitStack() as stack:
        stream, part = await begun(stack, server, puppet, StatusEvent("a"))
        body = await stream.until(b"}\n\n\n")
        line = body.strip() + b"\n"
        part.say("x")
        await stream.until(b"\x1dx")
        connection = heartbeats_due(server)
        await until(lambda: connection.quiet_ticks > 10)  # Several heartbeats were due.
        part.say("y")
        part.end()
        body = await stream.rest()
        assert b"\x1dxy\x1e" in body
        # They are no part of the stream: who comes back does not count them.
        again = await server.http.get(path_to(stream.turn_id, offset=len(line)))
        assert again.content == body[body.index(b"\x1d") :]


async def test_resumed_reader_gets_the_heartbeat_of_its_phase(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=0.03) as server:
        turn_id, part = await running(server, puppet, StatusEvent("a"))
        size = await size_so_far(server, turn_id)
        async with resume(server, turn_id, size) as stream:
            assert (await stream.until(b"\n\n")).strip() == b""
        async with resume(server, turn_id, size - 3) as stream:
            assert (await stream.until(b"\n\n\n")).startswith(b'"}\n\n')
        await until(lambda: server.turnwire.streams.open_count == 0)
        part.say("x")
        async with resume(server, turn_id, size) as stream:
            await stream.until(b"\x1dx")
            connection = heartbeats_due(server)
            await until(lambda: connection.quiet_ticks > 10)
            part.end()
            assert (await stream.rest()).startswith(b"\x1dx\x1e")


async def test_events_without_frames_do_not_delay_the_heartbeat(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=0.06) as server, AsyncExitStack() as stack:
        stream, part = await begun(stack, server, puppet, StatusEvent("a"))
        silent = TokenEvent("mumble", agent_path=("helper",))
        await stream.until(b"}\n")
        async with asyncio.timeout(PATIENCE):
            beat = asyncio.create_task(stream.until(b"}\n\n"))
            while not beat.done():
                part.say(silent)
                await asyncio.sleep(0.005)
        assert (await beat).endswith(b"}\n\n")
        part.end()
        await stream.rest()


async def test_a_stream_of_text_is_broken_after_its_lifetime_and_resumed(serve: Serve, puppet: Puppet) -> None:
    async with serve(stream_lifetime=600) as server, AsyncExitStack() as stack:
        stream, part = await begun(stack, server, puppet, "Half ", on_disconnect="cancel")
        await stream.until(b"Half ")
        let_time_pass(server.turnwire, 600)
        received = await stream.broken()
        # It was we who closed it, so nobody has left.
        part.say("and half")
        part.end()
        await server.ended(stream.turn_id)
        async with resume(server, stream.turn_id, len(received)) as again:
            body = received + await again.rest()
        assert phases(body)[1] == "Half and half"


@pytest.mark.long
async def test_a_slow_reader_catches_up_on_its_own(
    serve: Serve, kind: StoreKind, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who takes nothing falls out of the window; what it is sent then is what everyone is sent."""
    monkeypatch.setattr(TurnLog, "_check_response_size", lambda log, size: None)
    async with serve(store=kind, write_timeout=PATIENCE) as server, AsyncExitStack() as stack:
        stream, part = await begun(stack, server, puppet, *SEARCH)
        slow = await stack.enter_async_context(resume(server, stream.turn_id, 10))
        piece = "e" * 10_000  # Of a text beyond ASCII, every size would be measured exactly.
        for number in range(300):
            part.say(f"{number} {piece}")
            await stream.until(b"%d e" % number)
            stream.body = stream.body[-10_000:]
        part.end()
        await stream.rest()
        body = await slow.rest()
    assert phases(b"{}\n" + body[body.index(b"\n") + 1 :])[1] == "".join(f"{number} {piece}" for number in range(300))


# Any log, any byte


texts = st.text(max_size=6)
early = st.builds(StatusEvent, texts) | st.just(SEARCH[1])
answers = st.builds(TokenEvent, texts) | st.builds(CustomEvent, texts) | st.just(CITATION)
outcomes = st.sampled_from(["completed", "failed", "cancelled"])


async def turn_of(events: list[Event], outcome: Outcome) -> tuple[MemoryStore, TurnRecord]:
    store = MemoryStore()
    record = await claimed(store)
    ending = {"completed": ResponseEvent("x"), "failed": ErrorEvent("é broke", "odd"), "cancelled": StatusEvent("")}
    await append(store, record.id, 1, 3, *events, ending[outcome], done(record, outcome), end=True)
    return store, record


async def bytes_after(store: MemoryStore, turn_id: str, position: int) -> bytes:
    encoder = await encoder_at(store, turn_id, THREE_PHASE_TEXT, position, await void_of(store, turn_id))
    return b"".join(map(encoder.frame, await store.read(turn_id, position, 1_000)))


@pytest.mark.long
@settings(max_examples=examples(6))
@given(st.lists(early, max_size=4), st.lists(answers, max_size=6), outcomes)
async def test_resumed_stream_completes_the_whole_at_every_byte(
    lines: list[Event], tokens: list[Event], outcome: Outcome
) -> None:
    store, record = await turn_of([*lines, *tokens], outcome)
    whole = await bytes_after(store, record.id, 0)
    last = await bytes_after(store, record.id, 2 + len(lines) + len(tokens) + 1)
    for offset in some(range(len(whole) + 1), 30):
        point = await find_point(store, record.id, THREE_PHASE_TEXT, BYTES, offset)
        assert whole[:offset] + point.rest + await bytes_after(store, record.id, point.position) == whole
        assert point.is_end is (offset >= len(whole) - len(last))
    with pytest.raises(HttpError):
        await find_point(store, record.id, THREE_PHASE_TEXT, BYTES, len(whole) + 1)


@given(st.lists(early | answers, min_size=1, max_size=8), st.data())
async def test_log_with_a_restart_reads_like_one_without_void_events(events: list[Event], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events)))
    back = data.draw(st.integers(0, at))
    restarted = [*events[:at], RestartEvent(2 + back, "worker_lost"), *events[at:]]
    store, record = await turn_of(restarted, "failed")
    plain, other = await turn_of([*events[:back], *events[at:]], "failed")
    settled, expected = [
        phases(await bytes_after(store, turn.id, 0)) for store, turn in ((store, record), (plain, other))
    ]
    times = {"timestamp": None}
    assert [line | times for line in settled[0]] == [line | times for line in expected[0]]
    assert settled[1] == expected[1]
    for name in ("citations", "spans", "outcome", "error"):
        assert settled[2][name] == expected[2][name]


async def test_restart_during_the_walk_is_noticed() -> None:
    store = MemoryStore()
    record = await claimed(store)
    await append(store, record.id, 1, 3, StatusEvent("a"), TokenEvent("Void"))
    read, reads = store.read, 0

    async def read_late(turn_id: str, after: int, limit: int, epoch: int | None = None) -> Any:
        nonlocal reads
        reads += 1
        if reads == 2:  # The first page was read without it.
            await append(store, record.id, 1, 5, RestartEvent(3, "worker_lost"))
        return await read(turn_id, after, limit, epoch)

    store.read = read_late
    with pytest.raises(HttpError, match="restart made void"):
        await within(find_point(store, record.id, THREE_PHASE_TEXT, BYTES, 90))
    assert reads > 2


async def test_late_join_by_key_begins_at_the_first_byte(server: Served, puppet: Puppet) -> None:
    key = {"Idempotency-Key": "once"}
    async with AsyncExitStack() as stack:
        stream, part = await begun(stack, server, puppet, *LINES, headers=key)
        part.end()
        body = await stream.rest()
    again = await server.http.post(messages(), json={"message": "Hello"}, headers=key)
    assert again.content == body
