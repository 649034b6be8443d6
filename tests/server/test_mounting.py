"""Inside another application: mounted under a path, with or without its lifespan, behind its middleware."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from tests.faults.readers import without_heartbeats
from tests.server.conftest import StoreKind
from tests.server.socket_client import talking
from tests.server.text_client import ANSWER, LINES, begun, messages, phases
from tests.serving import Puppet, Served, error_of, quick_settings, serving, within
from turnwire import AgentError, Turnwire


class Stamp:
    """Middleware of the plain kind: it wraps `send`."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await self.app(scope, receive, stamped)


class StarletteStamp(BaseHTTPMiddleware):
    """Middleware of the kind that puts a queue between the application and the server."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-stamp"] = "1"
        return response


@pytest.fixture
def turnwire(puppet: Puppet, kind: StoreKind, tmp_path: Path) -> Turnwire:
    return Turnwire(puppet, store=kind, settings=quick_settings(tmp_path, heartbeat=0.05))


MIDDLEWARE = {"bare": None, "plain": Stamp, "starlette": StarletteStamp}


@pytest.fixture(params=MIDDLEWARE)
def middleware(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def mounted(turnwire: Turnwire, middleware: str) -> AsyncIterator[Served]:
    """Mounted at /agent in an application that runs no lifespan."""
    host = FastAPI()
    if kind := MIDDLEWARE[middleware]:
        host.add_middleware(kind)

    @host.get("/own")
    async def own() -> str:
        return "the host's"

    host.mount("/agent", turnwire.asgi())
    async with serving(turnwire, host, lifespan="off", path="/agent") as served:
        yield served


async def test_a_mounted_app_streams_and_is_resumed_under_its_prefix(
    mounted: Served, middleware: str, puppet: Puppet
) -> None:
    async with mounted.ask() as stream:
        part = await puppet.part()
        part.say("Half ")
        seen = await stream.until("token")
        assert stream.headers["location"] == f"/agent/v1/turns/{stream.turn_id}/events"
        assert ("x-stamp" in stream.headers) == (middleware != "bare")
    part.say("and half.")
    part.end()
    origin = f"http://127.0.0.1:{mounted.port}"
    last = {"Last-Event-ID": seen[-1].id or ""}
    async with mounted.stream("GET", origin + stream.headers["location"], headers=last) as again:
        rest = await again.rest()
        assert again.headers["location"] == stream.headers["location"]
    assert [frame.type for frame in rest] == ["token", "response", "done"]
    assert [*seen, *rest] == await mounted.whole(stream.turn_id)


async def test_a_mounted_app_has_its_sockets_under_its_prefix(mounted: Served, puppet: Puppet) -> None:
    async with talking(mounted) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        (await puppet.part()).end()
        assert (await talk.events(turn_id))[-1]["event"]["outcome"] == "completed"


async def test_a_mounted_app_answers_its_other_routes_and_leaves_the_hosts_alone(
    mounted: Served, puppet: Puppet
) -> None:
    assert (await mounted.http.get("/healthz")).json() == {"status": "ok"}
    assert (await mounted.http.post("/v1/sessions", json={"id": "s"})).status_code == 201
    started = await mounted.http.post("/v1/sessions/s/turns", json={"message": "Hello"})
    assert started.headers["location"] == f"/agent/v1/turns/{started.json()['turn_id']}/events"
    (await puppet.part()).end()
    async with mounted.stream("GET", "/v1/sessions/s/events") as stream:
        assert (await stream.until("done"))[0].id == f"{started.json()['turn_id']}:1"
    assert "paths" in (await mounted.http.get("/openapi.json")).json()
    error_of(await mounted.http.get("/v1/turns/unknown/events"), 404)
    error_of(await mounted.http.post("/chat/stream", json={}), 422)
    origin = f"http://127.0.0.1:{mounted.port}"
    assert (await mounted.http.get(f"{origin}/own")).json() == "the host's"
    assert (await mounted.http.get(f"{origin}/chat")).status_code == 404


async def test_shared_link_of_a_mounted_app_has_its_prefix(mounted: Served, puppet: Puppet) -> None:
    session = (await mounted.http.post("/v1/sessions", json={})).json()["id"]
    link = (await mounted.http.post(f"/v1/sessions/{session}/share")).json()
    assert link["url"] == f"{mounted.url}/share/{link['token']}"
    assert (await mounted.http.get(f"/v1/shared/{link['token']}")).status_code == 200


async def test_a_mounted_app_resets_beats_and_replays(mounted: Served, puppet: Puppet) -> None:
    async with mounted.ask() as stream:
        part = await puppet.part()
        await stream.until("message")
        beat = await stream.next_block()
        assert beat is not None
        assert beat.comment == "hb"
        part.say(*("x" * 1_000 for _ in range(600)))
        part.end()
        await stream.rest()
    frames = await mounted.whole(stream.turn_id)
    assert stream.seen == frames
    async with mounted.events(stream.turn_id, after="3.9") as replayed:
        reset, *rest = await replayed.rest()
        assert reset.type == "reset"
        assert rest == frames


async def test_mounted_app_streams_text_and_reports_a_failure(mounted: Served, puppet: Puppet) -> None:
    async with AsyncExitStack() as stack:
        stream, part = await begun(stack, mounted, puppet, *LINES)
        location = stream.headers["location"]
        assert location == f"/agent/v1/turns/{stream.turn_id}/events?wire=three_phase_text"
        part.end()
        body = await stream.rest()
    assert phases(body)[1] == ANSWER
    again = await mounted.http.get(f"http://127.0.0.1:{mounted.port}{location}&offset=7")
    assert again.content == without_heartbeats(body)[7:]
    asking = asyncio.create_task(mounted.http.post(messages(), json={"message": "Hello"}))
    (await puppet.part()).end(AgentError("Away."))
    assert error_of(await within(asking), 500)["code"] == "chat_failed"


async def test_mounted_app_notices_a_disconnect_before_the_first_frame(
    mounted: Served, puppet: Puppet, errors_in_the_log: list[str]
) -> None:
    # Starlette's middleware complains that there was no answer, also when there is nobody left to have it.
    errors_in_the_log.append("Exception in ASGI application")
    asking = asyncio.create_task(mounted.http.post(messages(), json={"message": "Hello", "on_disconnect": "cancel"}))
    part = await puppet.part()
    asking.cancel()
    await within(part.over.wait())
    assert (await mounted.ended(part.turn.id))["outcome"] == "cancelled"


async def test_mounted_app_notices_a_disconnect(mounted: Served, puppet: Puppet) -> None:
    async with mounted.ask(on_disconnect="cancel") as stream:
        part = await puppet.part()
        await stream.until("message")
    await mounted.ended(stream.turn_id)
    assert part.over.is_set()
    assert (await mounted.snapshot(stream.turn_id))["outcome"] == "cancelled"


async def test_a_broken_stream_of_a_mounted_app_does_not_look_whole(
    mounted: Served, middleware: str, puppet: Puppet, errors_in_the_log: list[str]
) -> None:
    # There is no other way to make the server break the connection through somebody's middleware.
    errors_in_the_log.append("Exception in ASGI application")
    await mounted.http.get("/healthz")
    _, text = await mounted.turnwire.keys.create("anna", ("read", "write"))
    async with mounted.ask(headers={"X-API-Key": text}) as stream:
        await puppet.part()
        await stream.until("message")
        for key in mounted.turnwire.keys.all():
            await mounted.turnwire.keys.revoke(key.id)
            mounted.turnwire.streams.close_key(key.id)
        if middleware == "starlette":
            # Starlette's queue always closes the response cleanly. What is missing is still to be seen.
            assert await stream.rest() == []
        else:
            with pytest.raises(httpx.TransportError):
                await stream.rest()


async def test_a_host_passes_its_lifespan_on(turnwire: Turnwire, puppet: Puppet) -> None:
    host = FastAPI(lifespan=turnwire.lifespan)
    host.mount("/agent", turnwire.asgi())
    async with serving(turnwire, host, path="/agent") as served:
        assert turnwire.is_open
        async with served.ask() as stream:
            (await puppet.part()).end()
            assert (await stream.rest())[-1].type == "done"
    assert not turnwire.is_open
