"""Attachments of a message: passed to an agent that takes them, refused for any other, never lost silently."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import Puppet, Served, error_of, quick_settings, saying, serving, within
from turnwire import Turn, Turnwire

PICTURE = {"name": "cat.png", "media_type": "image/png", "data": base64.b64encode(b"\x89PNG").decode()}
LINKED = {"media_type": "application/pdf", "url": "https://example.org/paper.pdf"}
ROUTES = (
    "/chat",
    "/chat/stream",
    "/v1/sessions/mine/turns",
    "/v1/rag/sessions/mine/messages",
    "/v1/rag/sessions/mine/messages/stream",
)


class Seeing(Puppet):
    takes_attachments = True


@pytest.fixture
def seeing() -> Seeing:
    return Seeing()


async def post(server: Served, route: str, **body: Any) -> Any:
    return await server.http.post(route, json={"message": "Look", **body})


@pytest.fixture
async def blind(serve: Serve, kind: StoreKind):
    """A server whose agent takes no files, and on which nothing may be written."""
    async with serve(saying("Hello."), store=kind) as served:
        await served.http.post("/v1/sessions", json={"id": "mine"})
        yield served
        assert await served.written() == (1, 0)


@pytest.mark.parametrize("route", ROUTES)
async def test_attachments_for_an_agent_without_support_are_a_422_with_its_name(blind: Served, route: str) -> None:
    error = error_of(await post(blind, route, attachments=[PICTURE]), 422)
    assert error["code"] == "attachments_not_taken"
    assert "'default'" in error["message"]
    assert "without them" in error["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_file_field_of_other_servers_is_refused_by_name(blind: Served, route: str) -> None:
    for name in ("images", "image", "image_url", "image_urls", "files", "file", "attachment"):
        error = error_of(await post(blind, route, **{name: [PICTURE]}), 422)
        assert error["message"].startswith(f"{name}: ")
        assert "`attachments`" in error["message"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["message", "prompt"])
async def test_content_parts_are_refused_with_advice(blind: Served, route: str, name: str) -> None:
    if name == "prompt" and "rag" not in route:
        return  # An older name, known on the older routes alone.
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "https://example.org/x"}}]
    error = error_of(await blind.http.post(route, json={name: parts}), 422)
    assert error["message"].startswith(f"{name}: ")
    assert "`attachments`" in error["message"]


@pytest.mark.parametrize(
    ("attachment", "field"),
    [
        ({"media_type": "image/png"}, "attachments.0"),
        ({**PICTURE, "url": "https://example.org/x"}, "attachments.0"),
        ({**PICTURE, "data": "not base64!"}, "attachments.0.data"),
        ({**PICTURE, "data": ""}, "attachments.0.data"),
        ({**PICTURE, "media_type": "picture"}, "attachments.0.media_type"),
        ({**PICTURE, "name": ""}, "attachments.0.name"),
        ({**PICTURE, "size": 4}, "attachments.0.size"),
        ({"data": PICTURE["data"]}, "attachments.0.media_type"),
        ({"media_type": "image/png", "url": "file:///etc/passwd"}, "attachments.0.url"),
        ({"media_type": "image/png", "url": "https://[broken"}, "attachments.0.url"),
        ("cat.png", "attachments.0"),
    ],
)
async def test_invalid_attachment_is_a_422_with_its_field(
    serve: Serve, seeing: Seeing, attachment: Any, field: str
) -> None:
    async with serve(seeing) as server:
        for route in ("/chat", "/v1/rag/sessions/mine/messages/stream"):
            error = error_of(await post(server, route, attachments=[attachment]), 422)
            assert error["fields"][0]["field"] == field
        assert error_of(await post(server, "/chat", attachments=[PICTURE] * 21), 422)["code"] == "invalid_request"
        assert await server.written() == (0, 0)


@pytest.mark.parametrize("route", ROUTES)
async def test_attachments_reach_the_agent_in_its_options(serve: Serve, seeing: Seeing, route: str) -> None:
    async with serve(seeing) as server:
        await server.http.post("/v1/sessions", json={"id": "mine"})
        asking = asyncio.create_task(post(server, route, attachments=[PICTURE, LINKED]))
        part = await seeing.part()
        assert part.turn.options["attachments"] == [PICTURE, LINKED]
        part.end()
        assert (await within(asking)).status_code in (200, 202)


async def test_empty_attachments_are_ignored(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        nothing: dict[str, Any] = {"attachments": [], "images": [], "files": None}
        assert (await post(server, "/chat", **nothing)).json()["content"] == "Hello."


async def test_attachments_are_part_of_the_fingerprint(serve: Serve, seeing: Seeing) -> None:
    async with serve(seeing) as server:
        await server.http.post("/v1/sessions", json={"id": "mine"})

        async def start(**body: Any) -> Any:
            return await server.http.post(
                "/v1/sessions/mine/turns", json={"message": "Look", **body}, headers={"Idempotency-Key": "k"}
            )

        first = await start(attachments=[PICTURE])
        again = await start(attachments=[PICTURE])
        assert (again.status_code, again.json()["turn_id"]) == (202, first.json()["turn_id"])
        for other in ({}, {"attachments": [LINKED]}, {"attachments": [PICTURE, PICTURE]}):
            assert error_of(await start(**other), 409)["code"] == "idempotency_conflict"


async def test_attachments_of_a_queued_turn_survive_a_restart(tmp_path: Path) -> None:
    first, second = Seeing(), Seeing()
    settings = quick_settings(tmp_path)
    async with serving(Turnwire(first, settings=settings)) as server:
        await server.start("Wait", session_id="s")
        await first.part()
        await server.start("Look", session_id="s", attachments=[PICTURE])
    async with serving(Turnwire(second, settings=settings)):
        part = await second.part()
        assert (part.turn.message, part.turn.options["attachments"]) == ("Look", [PICTURE])


async def test_a_queued_turn_whose_agent_takes_files_no_longer_fails_and_says_so(tmp_path: Path) -> None:
    first = Seeing()
    settings = quick_settings(tmp_path)
    async with serving(Turnwire(first, settings=settings)) as server:
        await server.start("Wait", session_id="s")
        await first.part()
        turn_id = await server.start("Look", session_id="s", attachments=[PICTURE])
    async with serving(Turnwire(saying("I see nothing."), settings=settings)) as server:
        *_, error, done = await server.whole(turn_id)
        assert (error.event["code"], done.event["outcome"]) == ("attachments_not_taken", "failed")


async def test_function_declares_that_it_takes_attachments(serve: Serve) -> None:
    async def yields(turn: Turn):
        yield turn.options["attachments"][0]["name"]

    async def returns(turn: Turn) -> str:
        return turn.options["attachments"][0]["name"]

    class Speaks:
        takes_attachments = True

        async def answer(self, turn: Turn) -> str:
            return turn.options["attachments"][0]["name"]

    for function in (yields, returns):
        function.takes_attachments = True  # type: ignore[attr-defined]
    for agent in (yields, returns, Speaks()):
        async with serve(agent) as server:
            answer = await within(post(server, "/chat", attachments=[PICTURE]))
            assert answer.json()["content"] == "cat.png"


async def test_schema_has_attachments_and_no_misnamed_fields(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        message = (await server.http.get("/openapi.json")).json()["components"]["schemas"]["MessageBody"]
        assert "attachments" in message["properties"]
        assert not {"images", "files", "file"} & set(message["properties"])
