"""`/v1/responses` as a WebSocket, with OpenAI's own client and by hand."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.openai_clients import openai_of
from tests.server.socket_client import SocketMessage, Talk, talking
from tests.serving import Puppet, saying, until, within
from turnwire.wires.openai.responses import routes as responses_routes

URL = "/v1/responses"


async def response(talk: Talk) -> list[SocketMessage]:
    """Return the next events, to the end of a response."""
    messages = [await talk.hear()]
    while messages[-1]["type"] not in ("response.completed", "response.failed", "response.incomplete", "error"):
        messages.append(await talk.hear())
    return messages


async def create(talk: Talk, text: str, **more: Any) -> None:
    await talk.say("response.create", model="turnwire", input=text, **more)


async def test_openais_client_asks_twice_on_one_socket(serve: Serve) -> None:
    async with serve(saying("Good ", "morning")) as server, openai_of(server) as client:
        async with client.responses.connect() as connection:
            texts: list[str] = []
            last: str | None = None
            for _ in range(2):
                await connection.response.create(model="turnwire", input="Hi", previous_response_id=last)
                async for event in connection:
                    if event.type == "response.completed":
                        assert event.response.previous_response_id == last
                        texts.append(event.response.output_text)
                        last = event.response.id
                        break
        assert texts == ["Good morning"] * 2
        assert await server.written() == (1, 2)


async def test_the_events_are_those_of_the_stream(serve: Serve) -> None:
    async with serve(saying("Good ", "morning")) as server, talking(server, URL) as talk:
        await create(talk, "Hi")
        events = await response(talk)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        path = f"{URL}/{events[0]['response']['id']}?stream=true"
        async with server.http.stream("GET", path) as answer:
            kinds = [line[7:] async for line in answer.aiter_lines() if line.startswith("event: ")]
    assert [event["type"] for event in events] == kinds


async def test_requests_of_one_stream_id_are_answered_in_order(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, talking(server, URL) as talk:
        await create(talk, "one", stream_id="a")
        await create(talk, "two", stream_id="a")
        await create(talk, "three", stream_id="b")
        parts = {part.turn.message: part for part in (await puppet.part(), await puppet.part())}
        assert set(parts) == {"one", "three"}
        parts["one"].end()
        second = await puppet.part()
        assert second.turn.message == "two"
        second.end()
        parts["three"].end()
        ended: list[str] = []
        while len(ended) < 3:
            message = await talk.hear()
            assert message["stream_id"] in ("a", "b")
            if message["type"] == "response.completed":
                ended.append(message["stream_id"])
    assert sorted(ended) == ["a", "a", "b"]


async def test_queued_requests_of_a_client_that_has_left_are_not_begun(
    serve: Serve, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = list[Any](), asyncio.Event()
    begin_response = responses_routes.begin_response

    async def begin(services: Any, caller: Any, body: Any, *key: Any) -> Any:
        begun.append(body.input)
        if len(begun) == 2:
            await go_on.wait()
        return await begin_response(services, caller, body, *key)

    monkeypatch.setattr(responses_routes, "begin_response", begin)
    async with serve() as server:
        streams = server.turnwire.services.streams
        async with talking(server, URL) as talk:
            for text in ("one", "two", "three"):
                await create(talk, text, stream_id="a")
            (await puppet.part()).end()
            await until(lambda: len(begun) == 2)
        await until(lambda: streams.open_count == 0)
        go_on.set()
        second = await puppet.part()
        await until(lambda: not streams.opened_by("local"))
        assert begun == ["one", "two"]
        second.end()


async def test_refused_request_is_an_openai_error_and_the_next_one_is_answered(serve: Serve) -> None:
    async with serve(saying("a")) as server, talking(server, URL) as talk:
        for kind, status in (("dance", 400), ("response.create", 400)):
            await talk.say(kind)
            message = await talk.hear()
            assert (message["type"], message["status"]) == ("error", status)
            assert {"message", "type", "code", "param"} <= set(message["error"])
        await create(talk, "Hi", stream_id="x", previous_response_id="resp_nothing")
        message = await talk.hear()
        assert (message["stream_id"], message["error"]["code"]) == ("x", "previous_response_not_found")
        assert await server.written() == (0, 0)
        await create(talk, "Hi", stream_id="x")
        assert (await within(response(talk)))[-1]["type"] == "response.completed"


async def test_a_key_without_the_scope_is_refused(serve: Serve) -> None:
    async with serve(saying("a")) as server:
        _, key = await server.turnwire.keys.create("ann", ["read"])
        async with talking(server, URL, additional_headers={"Authorization": f"Bearer {key}"}) as talk:
            await create(talk, "Hi")
            message = await talk.hear()
    assert (message["status"], message["error"]["code"]) == (403, "forbidden")
