"""Resuming a turn: from any position, live or finished, each event exactly once."""

import asyncio
from typing import Any

import pytest

from tests.serving import PATIENCE, Client, Frame, Part, Puppet, Served, error_of
from turnwire.assembly import build_wires
from turnwire.core.log.codec import now_ms


async def finished(server: Served, puppet: Puppet, *tokens: str) -> tuple[str, list[Frame]]:
    """A turn that has said this and ended: its id and all its frames."""
    async with server.ask() as stream:
        part = await puppet.part()
        part.say(*tokens)
        part.end()
        return stream.turn_id, await stream.rest()


async def running(server: Served, puppet: Puppet, *tokens: str) -> tuple[str, Part]:
    """A turn that has said this and goes on."""
    turn_id = await server.start()
    part = await puppet.part()
    part.say(*tokens)
    await server.reached(turn_id, 2 + len(tokens))
    return turn_id, part


async def test_a_finished_turn_is_resumed_from_every_position(server: Served, puppet: Puppet) -> None:
    turn_id, frames = await finished(server, puppet, *"abcdef")
    assert len(frames) == 10
    for known, frame in enumerate(frames[:-1], start=1):
        async with server.events(turn_id, after=known) as stream:
            assert await stream.rest() == frames[known:]
        async with server.events(turn_id, last_id=frame.id) as stream:
            assert await stream.rest() == frames[known:]
        async with server.events(turn_id, after=frame.id) as stream:
            assert await stream.rest() == frames[known:]
    async with server.events(turn_id) as stream:
        assert await stream.rest() == frames


async def test_a_running_turn_is_resumed_from_every_position(server: Served, puppet: Puppet) -> None:
    turn_id, part = await running(server, puppet, *"abcdef")
    following = asyncio.create_task(server.whole(turn_id))

    async def resumed(client: Client, **cursor: Any) -> list[Frame]:
        async with client.events(turn_id, **cursor) as stream:
            opened.append(cursor)
            if len(opened) == 17:
                part.say(*"ghi")
                part.end()
            return await stream.rest()

    opened: list[object] = []
    positions = range(9)
    by_position = [resumed(server, after=known) for known in positions]
    by_id = [resumed(server, last_id=f"{known}.{0 if known <= 2 else 1}") for known in positions if known]
    replays = await asyncio.gather(*by_position, *by_id)
    frames = await following
    assert len(frames) == 13
    assert replays == [frames[known:] for known in (*positions, *positions[1:])]


async def test_replay_continues_live_without_gap_or_repetition(server: Served, puppet: Puppet) -> None:
    """Readers come at every moment of a turn that never pauses."""
    turn_id, part = await running(server, puppet)
    async with asyncio.TaskGroup() as group:
        readers = []
        for number in range(40):
            part.say(*(f"{number}.{piece} " for piece in range(25)))
            readers.append(group.create_task(server.whole(turn_id)))
            await asyncio.sleep(0)
        part.end()
    whole = await server.whole(turn_id)
    assert [frame.position for frame in whole] == list(range(1, 1_005))
    assert all(reader.result() == whole for reader in readers)


async def test_many_readers_of_one_turn_get_the_same_bytes(server: Served, puppet: Puppet) -> None:
    turn_id, part = await running(server, puppet)
    all_there = asyncio.Barrier(51)

    async def read() -> bytes:
        async with server.events(turn_id) as stream:
            await stream.until("message")
            await all_there.wait()
            await stream.rest()
            return stream.raw

    reading = [asyncio.create_task(read()) for _ in range(50)]
    async with asyncio.timeout(PATIENCE):
        await all_there.wait()
    for number in range(100):
        part.say(f"Wort {number} – ", "\u2028")
        await asyncio.sleep(0)
    part.end()
    copies = set(await asyncio.gather(*reading))
    assert len(copies) == 1
    async with server.events(turn_id) as stream:
        await stream.rest()
    assert copies == {stream.raw}


async def test_a_finished_turn_that_was_read_to_its_end_is_a_204(server: Served, puppet: Puppet) -> None:
    turn_id, frames = await finished(server, puppet, "a")
    path = f"/v1/turns/{turn_id}/events"
    for response in (
        await server.http.get(path, params={"after": len(frames)}),
        await server.http.get(path, headers={"Last-Event-ID": frames[-1].id or ""}),
    ):
        assert response.status_code == 204
        assert response.content == b""


@pytest.mark.parametrize("cursor", ["99", "9999999999999.1", "4.7", "1.1"])
async def test_unknown_position_is_reset_and_replayed(server: Served, puppet: Puppet, cursor: str) -> None:
    turn_id, frames = await finished(server, puppet, *"ab")
    for where in ({"after": cursor}, {"last_id": cursor}):
        async with server.events(turn_id, **where) as stream:
            first = await stream.next()
            assert (first.id, first.event) == (None, {"type": "reset"})
            assert await stream.rest() == frames


async def test_a_position_ahead_of_a_running_turn_is_reset_and_replayed(server: Served, puppet: Puppet) -> None:
    turn_id, part = await running(server, puppet, *"ab")
    async with server.events(turn_id, after=50) as stream:
        assert (await stream.next()).type == "reset"
        part.say("c")
        part.end()
        frames = await stream.rest()
    assert frames == await server.whole(turn_id)


async def test_last_event_id_header_overrides_the_after_parameter(server: Served, puppet: Puppet) -> None:
    turn_id, frames = await finished(server, puppet, *"ab")
    async with server.events(turn_id, after=1, last_id=frames[3].id) as stream:
        assert await stream.rest() == frames[4:]


async def test_expired_events_are_a_gap_with_the_state(server: Served, puppet: Puppet) -> None:
    turn_id, frames = await finished(server, puppet, "All ", "gone.")
    last = len(frames)
    await server.turnwire.store.maintain(expire_before=now_ms() + 1)
    cursors: list[dict[str, Any]] = [{}, {"after": 2}, {"last_id": "3.1"}]
    for cursor in cursors:
        async with server.events(turn_id, **cursor) as stream:
            gap, *rest = await stream.rest()
            assert gap.id is None
            assert gap.event["type"] == "gap"
            assert gap.event["first_kept"] == last
            assert gap.event["state"]["text"] == "All gone."
            assert gap.event["state"]["outcome"] == "completed"
            assert rest == frames[-1:]
    async with server.events(turn_id, after=last - 1) as stream:
        assert await stream.rest() == frames[-1:]
    assert (await server.http.get(f"/v1/turns/{turn_id}/events?after={last}")).status_code == 204
    assert (await server.snapshot(turn_id))["state"]["text"] == "All gone."


@pytest.mark.parametrize("wire", [name for name in build_wires() if name != "sse_chat"])
async def test_expired_log_on_a_wire_without_gaps_is_gone_and_never_a_part(
    server: Served, puppet: Puppet, wire: str
) -> None:
    turn_id, _ = await finished(server, puppet, "All ", "gone.")
    await server.turnwire.store.maintain(expire_before=now_ms() + 1)
    for position in ({}, {"after": 2}):
        answer = await server.http.get(f"/v1/turns/{turn_id}/events", params={"wire": wire, **position})
        assert error_of(answer, 410)["code"] == "events_gone"


async def test_a_sealed_log_is_read_like_any_other(server: Served, puppet: Puppet) -> None:
    turn_id, frames = await finished(server, puppet, *"abc")
    await server.turnwire.store.maintain(expire_before=0)
    for known in range(len(frames)):
        async with server.events(turn_id, after=known) as stream:
            assert await stream.rest() == frames[known:]


async def test_a_turn_is_found_by_the_id_its_client_chose(server: Served, puppet: Puppet) -> None:
    async with server.ask(turn_id="my-turn:1") as stream:
        (await puppet.part()).end()
        frames = await stream.rest()
    assert await server.whole("my-turn:1") == frames


async def test_snapshot_and_later_stream_make_the_whole_turn(server: Served, puppet: Puppet) -> None:
    turn_id, part = await running(server, puppet, "One ", "two ")
    snapshot = await server.snapshot(turn_id)
    assert (snapshot["phase"], snapshot["outcome"], snapshot["state"]["text"]) == ("running", None, "One two ")
    part.say("three.")
    part.end()
    async with server.events(turn_id, after=snapshot["position"]) as stream:
        tokens = [frame.event["content"] for frame in await stream.rest() if frame.type == "token"]
    assert snapshot["state"]["text"] + "".join(tokens) == "One two three."
