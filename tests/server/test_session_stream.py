"""`GET /v1/sessions/{id}/events`: all turns of a session, whole and in order, also those of other clients."""

import asyncio

from tests.server.conftest import Serve
from tests.serving import PATIENCE, Frame, Puppet, Served, Stream, error_of, let_time_pass


async def new_session(server: Served) -> str:
    return (await server.http.post("/v1/sessions", json={})).json()["id"]


async def post_turn(server: Served, session_id: str, message: str, **body: object) -> str:
    response = await server.http.post(f"/v1/sessions/{session_id}/turns", json={"message": message, **body})
    assert response.status_code == 202
    return response.json()["turn_id"]


def follow(server: Served, session_id: str, last_id: str | None = None):
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    return server.stream("GET", f"/v1/sessions/{session_id}/events", headers=headers)


async def turn_of(stream: Stream) -> list[Frame]:
    return await stream.until("done")


async def test_a_session_stream_has_the_turns_whole_and_in_order(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    async with follow(server, session_id) as stream:
        assert stream.session_id == session_id
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        # Both are there before the first is answered, so the second one waits.
        turn_ids = [await post_turn(server, session_id, message) for message in ("One?", "Two?")]
        for answer in ("1", "2"):
            part = await puppet.part()
            part.say(answer)
            part.end()
        for turn_id, answer in zip(turn_ids, ("1", "2"), strict=True):
            frames = await turn_of(stream)
            assert [frame.id for frame in frames] == [f"{turn_id}:{number}" for number in range(1, 6)]
            assert [frame.type for frame in frames] == ["session", "message", "token", "response", "done"]
            assert frames[2].event["content"] == answer


async def test_a_session_stream_shows_the_turn_that_another_client_started_as_it_runs(
    server: Served, puppet: Puppet
) -> None:
    session_id = await new_session(server)
    async with follow(server, session_id) as stream, server.ask("From the side", session_id=session_id) as other:
        part = await puppet.part()
        part.say("live")
        seen = await stream.until("token")
        assert seen[1].event["content"] == "From the side"
        part.end()
        assert [frame.event for frame in [*seen, *await turn_of(stream)]] == [
            frame.event for frame in await other.rest()
        ]


async def test_a_session_stream_begins_with_the_turns_there_were(server: Served, puppet: Puppet) -> None:
    async with server.ask(session_id="long") as first:
        (await puppet.part()).end()
        await first.rest()
    async with follow(server, "long") as stream:
        assert [frame.event for frame in await turn_of(stream)] == [frame.event for frame in first.seen]


async def test_a_session_stream_is_resumed_from_every_id(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    for message in ("One?", "Two?", "Three?"):
        turn_id = await post_turn(server, session_id, message)
        (await puppet.part()).end()
        await server.ended(turn_id)
    async with follow(server, session_id) as stream:
        frames = [frame for _ in range(3) for frame in await turn_of(stream)]
    for known, frame in enumerate(frames[:-1], start=1):
        async with follow(server, session_id, frame.id) as stream:
            assert [await stream.next() for _ in frames[known:]] == frames[known:]
    async with follow(server, session_id, frames[-1].id) as stream:
        turn_id = await post_turn(server, session_id, "Four?")
        (await puppet.part()).end()
        assert [frame.id for frame in await turn_of(stream)] == [f"{turn_id}:{number}" for number in range(1, 5)]


async def test_a_session_stream_goes_on_in_the_middle_of_a_running_turn(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    turn_id = await post_turn(server, session_id, "One?")
    part = await puppet.part()
    part.say("a", "b")
    await server.reached(turn_id, 4)
    async with follow(server, session_id, f"{turn_id}:3") as stream:
        assert (await stream.next()).event == {"type": "token", "content": "b"}
        part.end()
        assert [frame.type for frame in await turn_of(stream)] == ["response", "done"]


async def test_session_stream_sends_a_gap_and_continues(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    turn_id = await post_turn(server, session_id, "One?")
    part = await puppet.part()
    part.say("gone")
    part.end()
    await server.ended(turn_id)
    await server.turnwire.store.maintain(expire_before=2**60)
    second = await post_turn(server, session_id, "Two?")
    (await puppet.part()).end()
    async with follow(server, session_id) as stream:
        gap, done = await turn_of(stream)
        assert (gap.id, gap.type, gap.event["state"]["text"]) == (None, "gap", "gone")
        assert done.id == f"{turn_id}:5"
        assert (await turn_of(stream))[0].id == f"{second}:1"


async def test_a_position_ahead_of_the_log_is_reset_and_the_session_replayed(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    turn_id = await post_turn(server, session_id, "One?")
    (await puppet.part()).end()
    await server.ended(turn_id)
    async with follow(server, session_id, f"{turn_id}:99") as stream:
        assert (await stream.next()).event == {"type": "reset"}
        assert [frame.position for frame in await turn_of(stream)] == [1, 2, 3, 4]


async def test_an_id_of_another_session_is_not_found(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    other = await server.start()
    await puppet.part()
    response = await server.http.get(f"/v1/sessions/{session_id}/events", headers={"Last-Event-ID": f"{other}:1"})
    assert error_of(response, 404)["code"] == "turn_not_found"


async def test_many_readers_of_a_session_get_the_same_bytes(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    ready = asyncio.Barrier(21)

    async def read() -> bytes:
        async with follow(server, session_id) as stream:
            await stream.until("message")
            await ready.wait()
            await turn_of(stream)
            return stream.raw.partition(b": stream open\n\n")[2]

    reading = [asyncio.create_task(read()) for _ in range(20)]
    await post_turn(server, session_id, "Hello")
    part = await puppet.part()
    async with asyncio.timeout(PATIENCE):
        await ready.wait()
    part.say(*"abcdefgh")
    part.end()
    assert len(set(await asyncio.gather(*reading))) == 1


async def test_a_session_stream_has_a_heartbeat_and_a_lifetime(serve: Serve) -> None:
    async with serve(heartbeat=30, stream_lifetime=80) as server:
        session_id = await new_session(server)
        async with follow(server, session_id) as stream:
            blocks = [await stream.next_block()]
            let_time_pass(server.turnwire, 80)
            while (block := await stream.next_block()) is not None:
                blocks.append(block)
        *comments, farewell = [block for block in blocks if block is not None]
        assert [comment.comment for comment in comments] == ["stream open", "hb", "hb"]
        assert farewell.type == "reconnect"
