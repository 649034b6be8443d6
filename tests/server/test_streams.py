"""Streams: headers, heartbeat, lifetime; and the long poll for clients that cannot stream."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.serving import Puppet, Served, error_of, let_time_pass, until, within
from turnwire.server.auth import Caller
from turnwire.server.request import Request
from turnwire.server.streams.resume import START
from turnwire.server.streams.stream import SessionSource, Stream, stream_turn
from turnwire.wires.sse_chat.encoder import SseChat


async def test_stream_headers_have_turn_session_and_location(server: Served, puppet: Puppet) -> None:
    async with server.ask() as stream:
        (await puppet.part()).end()
        session, *rest = await stream.rest()
        assert session.event["turn_id"] == stream.headers["x-turn-id"]
        assert session.event["session_id"] == stream.headers["x-session-id"]
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["x-content-type-options"] == "nosniff"
        location = stream.headers["location"]
    async with server.stream("GET", location, params={"after": 1}) as again:
        assert await again.rest() == rest
        for name in ("x-turn-id", "x-session-id", "location", "cache-control", "x-accel-buffering"):
            assert again.headers[name] == stream.headers[name]


async def test_an_idle_stream_has_a_heartbeat(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=0.05) as server, server.ask() as stream:
        part = await puppet.part()
        await stream.until("message")
        for _ in range(3):
            block = await stream.next_block()
            assert block is not None
            assert (block.comment, block.data, block.id) == ("hb", None, None)
        part.end()
        assert [frame.type for frame in await stream.rest()] == ["response", "done"]


async def test_reader_with_all_events_gets_the_opening_at_once(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    await puppet.part()
    async with server.events(turn_id, after=2) as stream:
        block = await stream.next_block()
        assert block is not None
        assert block.comment == "stream open"


async def test_a_stream_is_asked_to_reconnect_after_its_lifetime(serve: Serve, puppet: Puppet) -> None:
    async with serve(stream_lifetime=600) as server:
        async with server.ask(on_disconnect="cancel") as stream:
            part = await puppet.part()
            part.say("a")
            before = await stream.until("token")
            let_time_pass(server.turnwire, 600)
            (farewell,) = await stream.rest()
        assert farewell.id is None
        assert farewell.retry == farewell.event["retry_ms"] > 0
        assert farewell.event["type"] == "reconnect"
        assert [frame.type for frame in before] == ["session", "message", "token"]
        # It was we who closed it, so nobody has left.
        part.say("b")
        part.end()
        async with server.events(stream.turn_id, last_id=before[-1].id) as again:
            rest = await again.rest()
        assert [frame.type for frame in rest] == ["token", "response", "done"]
        assert rest[-1].event["outcome"] == "completed"


async def test_an_unknown_wire_is_refused_with_the_names_of_those_there_are(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    error = error_of(await server.http.get(f"/v1/turns/{turn_id}/events?wire=morse"), 422)
    assert error["code"] == "unknown_wire"
    assert "sse_chat" in error["message"]
    async with server.stream("GET", f"/v1/turns/{turn_id}/events", params={"wire": "sse_chat"}) as stream:
        (await puppet.part()).end()
        assert (await stream.rest())[-1].type == "done"


async def poll(server: Served, turn_id: str, after: int, wait: float | str) -> dict:
    response = await server.http.get(f"/v1/turns/{turn_id}/events", params={"after": after, "wait": wait})
    assert response.status_code == 200
    return response.json()


async def test_long_poll_returns_existing_events_at_once(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    part = await puppet.part()
    part.say("a", "b")
    await server.reached(turn_id, 4)
    page = await poll(server, turn_id, 0, 30)
    assert [logged["position"] for logged in page["events"]] == [1, 2, 3, 4]
    assert [logged["event"]["type"] for logged in page["events"]] == ["session", "message", "token", "token"]
    assert page["events"][2]["epoch"] == 1
    assert page["events"][2]["at"] > 1_700_000_000_000
    assert (page["after"], page["done"]) == (4, False)


async def test_long_poll_waits_for_the_next_event(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    part = await puppet.part()
    waiting = asyncio.create_task(poll(server, turn_id, 2, 30))
    part.say("now")
    page = await waiting
    assert [logged["event"] for logged in page["events"]] == [{"type": "token", "content": "now"}]
    assert (page["after"], page["done"]) == (3, False)


@pytest.mark.parametrize("wait", ["0", "0.02", "-1", "nan"])
async def test_long_poll_returns_empty_after_its_timeout(server: Served, puppet: Puppet, wait: str) -> None:
    turn_id = await server.start()
    await puppet.part()
    assert await poll(server, turn_id, 2, wait) == {"events": [], "after": 2, "done": False}


async def test_long_polls_return_a_whole_turn_and_its_end(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    part = await puppet.part()
    part.say(*(f"{number} " for number in range(2_500)))
    part.end()
    events, page = [], {"after": 0, "done": False}
    while not page["done"]:
        page = await poll(server, turn_id, page["after"], 10)
        events += page["events"]
    assert [logged["position"] for logged in events] == list(range(1, 2_505))
    assert [logged["event"] for logged in events] == [frame.event for frame in await server.whole(turn_id)]
    assert await poll(server, turn_id, page["after"], 10) == {"events": [], "after": page["after"], "done": True}


async def test_long_poll_from_an_unknown_position_is_409(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    await puppet.part()
    response = await server.http.get(f"/v1/turns/{turn_id}/events", params={"after": 77, "wait": 1})
    assert error_of(response, 409)["code"] == "reset"


async def test_long_poll_for_expired_events_is_410(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    (await puppet.part()).end()
    await server.ended(turn_id)
    await server.turnwire.store.maintain(expire_before=2**60)
    response = await server.http.get(f"/v1/turns/{turn_id}/events", params={"wait": 1})
    assert error_of(response, 410)["code"] == "events_gone"


class Cycle:
    """As uvicorn's, which takes no body before the start, and is written to without a task in between."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, message: dict[str, Any]) -> None:
        assert self.sent or message["type"] == "http.response.start"
        self.sent.append(message["type"])

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}


Cycle.__module__ = "uvicorn.protocols.http.scripted"


@pytest.mark.parametrize("source_kind", ["turn", "session"])
async def test_stream_opened_while_draining_is_started_and_ended(
    server: Served, puppet: Puppet, source_kind: str
) -> None:
    turn_id = await server.start()
    await puppet.part()
    services, wire, cycle = server.turnwire.services, SseChat(), Cycle()
    record = await services.store.find_turn("local", turn_id)
    services.streams.drain()
    request = Request({"path": "/", "headers": []}, cycle.receive, cycle.send)
    request.caller = Caller("local", ())
    if source_kind == "turn":
        stream = stream_turn(request, services, record, wire, START)
    else:
        source = SessionSource(services.store, record.session_id, None, 0, wire.session_encoder)
        stream = Stream(request, services, wire, source, [])
    await stream.run(cycle.receive, cycle.send)
    assert cycle.sent[:2] == ["http.response.start", "http.response.body"]


async def test_download_that_has_not_begun_gets_no_heartbeat(
    server: Served, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write before the status would raise where all streams are checked, and end the checks."""
    turn_id = await server.start()
    (await puppet.part()).end()
    await server.ended(turn_id)
    store, streams, let_go = server.turnwire.store, server.turnwire.streams, asyncio.Event()
    read = store.read

    async def read_slowly(*arguments: Any) -> Any:
        await let_go.wait()
        return await read(*arguments)

    monkeypatch.setattr(store, "read", read_slowly)
    waiting = asyncio.create_task(server.http.get(f"/v1/turns/{turn_id}/log.jsonl"))
    await until(lambda: streams.open_count == 1)
    let_time_pass(server.turnwire, 2 * server.turnwire.settings.heartbeat)
    let_go.set()
    assert len((await within(waiting)).text.splitlines()) == 4
