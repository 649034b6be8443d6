"""The AI SDK's own chat: versions 5, 6 and 7 over HTTP, version 7 on a WebSocket."""

from typing import Any

import pytest

from tests.clients.conftest import Run
from tests.clients.scenes import RICH, play
from tests.server.conftest import Serve
from tests.serving import Puppet

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["http5", "http6", "http7", "ws7"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


def of(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in message["parts"] if part["type"] == kind]


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in of(message, "text"))


async def test_everything_in_a_turn_is_shown(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "ask", "rich") as script:
        told = await script.next()
        await script.ended()
    message = told["message"]
    assert (told["status"], told.get("error")) == ("ready", None)
    assert text_of(message) == RICH
    assert "".join(part["text"] for part in of(message, "reasoning")) == "Where is it sunny?"
    good, bad = of(message, "dynamic-tool")
    assert (good["state"], good["input"], good["output"]) == (
        "output-available",
        {"city": "Zürich"},
        {"sky": "sunny"},
    )
    assert (bad["state"], bad["errorText"]) == ("output-error", "no such city")
    (link,), (document,) = of(message, "source-url"), of(message, "source-document")
    assert (link["sourceId"], link["url"], document["title"]) == ("1", "https://example.org/sun", "Notes")
    assert message["metadata"]["outcome"] == "completed"
    assert message["metadata"]["usage"]["inputTokens"] == 11
    assert "to myself" not in str(of(message, "text"))


async def test_a_failed_turn_is_an_error(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "ask", "fail") as script:
        told = await script.next()
    assert (told["status"], told["error"]) == ("error", "the model is away")
    assert text_of(told["message"]) == "It begins "


async def test_an_answer_is_made_anew(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "again", "plain") as script:
        told = await script.next()
        assert (told["status"], told["count"], text_of(told["message"])) == ("ready", 2, "Plain answer.")
        assert told["message"]["id"] != told["first"]
        assert await server.written() == (1, 2)


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("transport", ["http6", "http7", "ws7"])  # Version 5 knows no approvals.
async def test_a_person_decides(serve: Serve, run: Run, transport: str, approved: bool) -> None:
    decision = str(approved).lower()
    async with serve(play) as server, run("chat.mjs", server.url, transport, "decide", "pay", decision) as script:
        asked = await script.next()
        assert (asked["status"], asked["asked"]["state"]) == ("ready", "approval-requested")
        assert asked["asked"]["input"] == {"amount": 40}
        told = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert (told["status"], told["count"]) == ("ready", 2)
    assert told["message"]["id"] == asked["message"]["id"]
    (call,) = of(told["message"], "dynamic-tool")
    assert call["state"] == ("output-available" if approved else "output-denied")
    assert text_of(told["message"]) == ("Paid." if approved else "Denied: as I like")


async def test_stop_stops_the_turn(serve: Serve, run: Run, puppet: Puppet, transport: str) -> None:
    async with serve() as server, run("chat.mjs", server.url, transport, "stop", "slow") as script:
        part = await puppet.part()
        part.say("Partial")
        assert await script.next() == {"begun": "Partial"}
        told = await script.next()
        assert (told["status"], text_of(told["message"])) == ("ready", "Partial")
        assert (await server.ended(told["message"]["id"]))["outcome"] == "cancelled"


async def test_a_page_that_is_loaded_again_resumes(serve: Serve, run: Run, puppet: Puppet, transport: str) -> None:
    async with serve() as server, run("chat.mjs", server.url, transport, "resume", "slow") as script:
        part = await puppet.part()
        part.say("Hello ")
        assert await script.next() == {"begun": "Hello "}
        part.say("again")
        part.end()
        told, idle = await script.next(), await script.next()
        await script.ended()
    assert (told["status"], text_of(told["message"]), told["same"]) == ("ready", "Hello again", True)
    assert (idle["status"], idle["count"]) == ("ready", 2)
