"""Tests of OpenAI's own clients for Node and Python."""

import openai
import pytest
from openai import AsyncOpenAI

from tests.clients.conftest import Run
from tests.clients.scenes import RICH, play
from tests.server.conftest import Serve
from tests.serving import Puppet, Served, within

pytestmark = pytest.mark.timeout(300)


# Node


async def test_node_response_is_streamed_and_continued(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("openai.mjs", server.url, "responses", "rich") as script:
        report, plain = await script.next(), await script.next()
        await script.ended()
        assert await server.written() == (1, 2)
    assert report["text"] == report["final"] == RICH
    assert (report["types"][0], report["types"][-1], report["status"]) == (
        "response.created",
        "response.completed",
        "completed",
    )
    kinds = [item["type"] for item in report["output"]]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 2
    assert {"reasoning", "message"} <= set(kinds)
    assert plain == {"text": "Plain answer.", "status": "completed", "previous": report["id"]}


async def test_node_failed_turn_is_a_failed_response(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("openai.mjs", server.url, "failing", "fail") as script:
        report = await script.next()
    assert (report["type"], report["status"]) == ("response.failed", "failed")
    assert report["error"]["message"] == "the model is away"


async def test_node_background_response_resumes_after_disconnect(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve() as server, run("openai.mjs", server.url, "background", "slow") as script:
        part = await puppet.part()
        part.say("Hello ")
        await script.next()
        part.say("again")
        part.end()
        assert await script.next() == {"text": "Hello again", "gapless": True, "last": "response.completed"}
        assert await script.next() == {"final": "Hello again", "polled": "completed"}
        await script.ended()


async def test_node_background_response_is_cancelled(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve() as server, run("openai.mjs", server.url, "cancel", "slow") as script:
        assert (await script.next())["status"] in ("queued", "in_progress")
        assert await script.next() == {"status": "cancelled"}


async def test_node_completion_has_same_text_streamed_and_whole(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("openai.mjs", server.url, "completions", "rich") as script:
        report, whole = await script.next(), await script.next()
        await script.ended()
    assert report["text"] == report["final"] == whole["text"] == RICH
    assert (report["reason"], report["usage"]["prompt_tokens"]) == ("stop", 11)
    assert "turnwire" in whole["models"] or whole["models"] == ["default"]


async def test_node_failed_completion_raises_after_partial_text(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("openai.mjs", server.url, "broken", "fail") as script:
        report = await script.next()
    assert report["text"] == "It begins "
    assert report["error"]


# Python


def client_of(server: Served) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


async def test_python_response_is_streamed(serve: Serve) -> None:
    async with (
        serve(play) as server,
        client_of(server) as client,
        client.responses.stream(model="turnwire", input="rich") as stream,
    ):
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == RICH


async def test_python_background_response_resumes_after_disconnect(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, client_of(server) as client:
        begun = await client.responses.create(model="turnwire", input="slow", background=True, stream=True)
        part = await puppet.part()
        part.say("Hello ")
        seen = []
        async for event in begun:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        await begun.close()
        part.say("again")
        part.end()
        response_id = seen[0].response.id  # type: ignore[union-attr]
        after = seen[-1].sequence_number
        resumed = await within(client.responses.retrieve(response_id, stream=True, starting_after=after))
        seen += [event async for event in resumed]
        async with client.responses.stream(response_id=response_id, starting_after=after) as replayed:
            final = await within(replayed.get_final_response())
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert final.output_text == "Hello again"


async def test_python_completion_is_streamed_and_failure_raises(serve: Serve) -> None:
    async with serve(play) as server, client_of(server) as client:
        messages = [{"role": "user", "content": "rich"}]
        async with client.chat.completions.stream(model="turnwire", messages=messages) as stream:  # type: ignore[arg-type]
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == RICH
        broken = await client.chat.completions.create(
            model="turnwire", messages=[{"role": "user", "content": "fail"}], stream=True
        )
        with pytest.raises(openai.APIError):
            async for _ in broken:
                pass
