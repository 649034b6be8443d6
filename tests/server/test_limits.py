"""Limits of one principal: open streams, unfinished turns, sizes and times."""

import asyncio
from collections.abc import AsyncIterator

from tests.server.conftest import Serve, StoreKind
from tests.serving import Client, Puppet, error_of, until
from turnwire import Turn
from turnwire.core.log.turn_log import LogLimits


async def test_more_open_streams_than_allowed_are_refused_until_one_closes(
    serve: Serve, kind: StoreKind, puppet: Puppet
) -> None:
    async with serve(store=kind, max_open_streams=2) as server:
        async with server.ask(session_id="s") as first, server.stream("GET", "/v1/sessions/s/events"):
            await puppet.part()
            for response in (
                await server.http.get(f"/v1/turns/{first.turn_id}/events"),
                await server.http.get("/v1/sessions/s/events"),
                await server.http.post("/chat/stream", json={"message": "Hello"}),
            ):
                assert error_of(response, 429)["code"] == "too_many_streams"
                assert int(response.headers["retry-after"]) > 0
            assert await server.written() == (1, 1)
            # A long poll that need not wait is no stream.
            response = await server.http.get(f"/v1/turns/{first.turn_id}/events?wait=0")
            assert response.status_code == 200
        await until(lambda: server.turnwire.streams.open_count == 0)
        async with server.events(first.turn_id):
            pass


async def test_streams_that_are_opened_at_once_are_counted_too(serve: Serve, kind: StoreKind, puppet: Puppet) -> None:
    async with serve(store=kind, max_open_streams=3) as server:

        async def ask() -> int:
            async with server.http.stream("POST", "/chat/stream", json={"message": "Hello"}) as response:
                if response.status_code == 200:
                    await done.wait()
                return response.status_code

        done = asyncio.Event()
        asking = [asyncio.create_task(ask()) for _ in range(12)]
        await until(lambda: sum(task.done() for task in asking) + server.turnwire.streams.open_count >= 12)
        assert server.turnwire.streams.open_count == 3
        done.set()
        assert sorted(await asyncio.gather(*asking)) == [200] * 3 + [429] * 9
        assert await server.written() == (3, 3)


async def test_ended_stream_frees_its_slot(serve: Serve, puppet: Puppet) -> None:
    async with serve(max_open_streams=1) as server:
        for _ in range(3):
            async with server.ask() as stream:
                (await puppet.part()).end()
                assert (await stream.rest())[-1].type == "done"


async def test_limits_are_per_principal(serve: Serve, puppet: Puppet) -> None:
    def authenticate(scope: dict) -> str:
        return dict(scope["headers"])[b"x-user"].decode()

    async with serve(max_open_streams=1, max_running_turns=1, authenticate=authenticate) as server:
        anna, bob = Client(server.url, {"X-User": "anna"}), Client(server.url, {"X-User": "bob"})
        async with anna.ask(), bob.ask():
            error_of(await anna.http.post("/chat/stream", json={"message": "Hello"}), 429)
        await anna.http.aclose()
        await bob.http.aclose()


async def test_more_unfinished_turns_than_allowed_are_refused_until_one_ends(
    serve: Serve, kind: StoreKind, puppet: Puppet
) -> None:
    async with (
        serve(store=kind, max_running_turns=2) as server,
        server.ask("One", session_id="s") as first,
        server.ask("Two", session_id="s"),
    ):
        for path in ("/chat", "/chat/stream"):
            response = await server.http.post(path, json={"message": "Three"})
            assert error_of(response, 429)["code"] == "too_many_turns"
            assert int(response.headers["retry-after"]) > 0
        assert await server.written() == (1, 2)
        (await puppet.part()).end()
        await first.rest()
        async with server.ask("Three"):
            pass


async def test_a_body_over_the_limit_is_refused_and_one_below_is_not(serve: Serve, puppet: Puppet) -> None:
    async with serve(max_body_bytes=1_000) as server:
        response = await server.http.post("/chat/stream", json={"message": "x" * 1_000})
        assert error_of(response, 413)["code"] == "body_too_large"
        async with server.ask("x" * 900):
            assert (await puppet.part()).turn.message == "x" * 900


async def test_an_event_over_the_limit_ends_the_turn(serve: Serve, kind: StoreKind, puppet: Puppet) -> None:
    async with serve(store=kind) as server, server.ask() as stream:
        (await puppet.part()).say("fits", "x" * LogLimits().max_event_bytes)
        frames = await stream.rest()
        assert [frame.type for frame in frames] == ["session", "message", "token", "error", "done"]
        assert frames[-2].event["code"] == "event_too_large"


async def test_a_turn_that_takes_too_long_is_ended(serve: Serve, kind: StoreKind) -> None:
    async def think(turn: Turn) -> AsyncIterator[str]:
        yield "Still thinking"
        await asyncio.Event().wait()

    async with serve(think, kind, turn_timeout=0.05) as server, server.ask() as stream:
        frames = await stream.rest()
        assert (frames[-2].event["code"], frames[-2].event["retryable"]) == ("turn_timeout", True)
        assert frames[-1].event["outcome"] == "failed"
