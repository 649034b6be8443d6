"""`/v1/responses`, asked by OpenAI's own client over a real socket."""

import asyncio
import json
import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.server.conftest import Serve, StoreKind
from tests.server.openai_clients import openai_of
from tests.serving import PATIENCE, Puppet, Served, saying, serving, within
from turnwire import Turn
from turnwire.core.errors import AgentError
from turnwire.core.log.events import (
    CitationEvent,
    ReasoningEvent,
    RestartEvent,
    StatusEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

RICH = (
    StatusEvent("reading"),
    ReasoningEvent("hm"),
    "One ",
    ToolCallEvent("c1", "find", {"q": "é"}),
    ToolResultEvent("c1", "find", True, [1, 2]),
    "two [1] – é.",
    CitationEvent(1, "d1", title="T", url="https://x.example", answer_start=8, answer_end=11),
    UsageEvent("m", 3, 4),
)
RICH_TEXT = "One two [1] – é."


@pytest.fixture
async def rich(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(saying(*RICH), store=kind) as served:
        yield served


@pytest.fixture
async def client(server: Served) -> AsyncIterator[AsyncOpenAI]:
    async with openai_of(server) as client:
        yield client


async def recite(turn: Turn) -> AsyncIterator[str]:
    """Says what it has been told, and in which words."""
    history = [f"{message.role}:{message.content or len(message.tool_calls)}" for message in turn.history]
    yield " | ".join([*history, turn.message])


async def rest_of(stream: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in stream]


async def read_until(stream: Any, kind: str) -> list[Any]:
    events: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        async for event in stream:
            events.append(event)
            if event.type == kind:
                break
    return events


def as_json(events: list[Any]) -> list[str]:
    return [event.to_json() for event in events]


# Asking


async def test_a_question_is_answered(rich: Served) -> None:
    async with openai_of(rich) as client:
        response = await client.responses.create(model="turnwire", input="hi")
        assert (response.status, response.output_text, response.model) == ("completed", RICH_TEXT, "default")
        assert response.usage is not None
        assert response.usage.total_tokens == 7
        assert [item.type for item in response.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call_output",
            "message",
        ]
        again = await client.responses.retrieve(response.id)
        assert again == response


async def test_stream_sends_tokens_as_they_come(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(input="hi", stream=True)
    part = await puppet.part()
    part.say("Good ")
    first = await read_until(stream, "response.output_text.delta")
    assert first[-1].delta == "Good "
    part.say("day.")
    second = await read_until(stream, "response.output_text.delta")
    assert second[-1].delta == "day."
    part.end()
    rest = await rest_of(stream)
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "Good day."
    assert [event.sequence_number for event in first + second + rest] == list(range(len(first + second + rest)))
    assert rest[-1].response == await client.responses.retrieve(rest[-1].response.id)


async def test_the_stream_helper_gives_the_whole_response(rich: Served) -> None:
    async with openai_of(rich) as client:
        async with client.responses.stream(model="default", input="hi") as stream:
            events = await rest_of(stream)
            final = await stream.get_final_response()
        assert final.output_text == RICH_TEXT
        assert [event.type for event in events].count("response.output_text.annotation.added") == 1
        (annotation,) = final.output[-1].content[0].annotations  # type: ignore[union-attr]
        assert (annotation.start_index, annotation.end_index) == (4, 7)  # type: ignore[union-attr]


async def test_a_stream_is_framed_as_every_client_can_read_it(rich: Served) -> None:
    answer = await rich.http.post("/v1/responses", json={"input": "hi", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    turn_id = answer.headers["x-turn-id"]
    assert answer.headers["location"] == f"/v1/responses/resp_{turn_id}?stream=true"
    *frames, last, end = answer.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    for number, frame in enumerate(frames):
        event, data = frame.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert event == f"event: {payload['type']}"
        assert payload["sequence_number"] == number


async def test_a_quiet_stream_stays_alive_and_readable(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=0.03) as server, openai_of(server) as client:
        stream = await client.responses.create(input="hi", stream=True)
        part = await puppet.part()
        await read_until(stream, "response.in_progress")
        part.say("x")
        await read_until(stream, "response.output_text.delta")
        async with server.stream("GET", stream.response.headers["location"]) as raw:
            received = b""
            async with asyncio.timeout(PATIENCE):
                async for chunk in raw.response.aiter_raw():
                    received += chunk
                    if received.count(b": hb\n") > 2:
                        break
            assert b": hb\n\n" not in received
        part.end()
        assert (await rest_of(stream))[-1].response.output_text == "x"


async def test_earlier_input_items_become_the_history(serve: Serve) -> None:
    async with serve(recite) as server, openai_of(server) as client:
        items: Any = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "find", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "nothing"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
            {"role": "user", "content": "three"},
        ]
        response = await client.responses.create(input=items)
        assert response.output_text == "user:one | assistant:2 | tool:found | tool:nothing | assistant:two | three"
        page = await client.responses.input_items.list(response.id, order="asc")
        assert [item.type for item in page.data] == [
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
            "message",
        ]
        every = [item async for item in client.responses.input_items.list(response.id, limit=2)]
        assert [item.id for item in every] == [item.id for item in reversed(page.data)]


async def test_request_options_are_echoed_and_reach_the_agent(
    server: Served, puppet: Puppet, client: AsyncOpenAI
) -> None:
    asking = asyncio.create_task(
        client.responses.create(
            input=[{"role": "system", "content": "In rhyme."}, {"role": "user", "content": "hi"}],
            instructions="Be brief.",
            temperature=0.2,
            metadata={"order": "7"},
            max_output_tokens=50,
        )
    )
    part = await puppet.part()
    part.end()
    response = await within(asking)
    assert part.turn.options == {
        "instructions": "Be brief.\n\nIn rhyme.",
        "temperature": 0.2,
        "metadata": {"order": "7"},
        "max_output_tokens": 50,
    }
    assert (response.temperature, response.metadata, response.max_output_tokens) == (0.2, {"order": "7"}, 50)
    assert response.instructions == "Be brief.\n\nIn rhyme."


async def test_the_same_key_again_joins_the_same_response(rich: Served) -> None:
    async with openai_of(rich) as client:
        headers = {"Idempotency-Key": "k"}
        asking: Any = {"input": "hi", "conversation": "chat", "extra_headers": headers}
        first, again = [await client.responses.create(**asking) for _ in range(2)]
        assert first == again
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(input="hi", previous_response_id=first.id, extra_headers=headers)
        assert refused.value.code == "idempotency_conflict"


# How it ends


async def test_failure_is_a_failed_response(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(input="hi", stream=True)
    part = await puppet.part()
    part.say("par")
    part.end(AgentError("The model is away.", code="model_unavailable", retryable=True))
    last = (await rest_of(stream))[-1]
    assert last.type == "response.failed"
    assert (last.response.error.code, last.response.error.message) == ("model_unavailable", "The model is away.")
    assert last.response.output_text == "par"
    asking = asyncio.create_task(client.responses.create(input="hi"))
    (await puppet.part()).end(AgentError("No."))
    response = await within(asking)
    assert (response.status, response.error and response.error.message) == ("failed", "No.")
    async with client.responses.stream(model="default", input="hi") as helper:
        (await puppet.part()).end(AgentError("No."))
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await within(helper.get_final_response())


async def test_cancelled_response_keeps_the_partial_text(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(input="hi", stream=True)
    part = await puppet.part()
    part.say("par")
    events = await read_until(stream, "response.output_text.delta")
    stopped = await within(client.responses.cancel(events[0].response.id))
    assert (stopped.status, stopped.output_text) == ("cancelled", "par")
    last = (await rest_of(stream))[-1]
    assert (last.type, last.response) == ("response.incomplete", stopped)
    assert await client.responses.cancel(stopped.id) == stopped
    assert part.over.is_set()


async def test_disconnect_does_not_cancel_the_turn(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(input="hi", stream=True)
    events = await read_until(stream, "response.in_progress")
    await stream.close()
    part = await puppet.part()
    part.say("still here")
    part.end()
    response_id = events[0].response.id
    await server.ended(response_id.removeprefix("resp_"))
    assert (await client.responses.retrieve(response_id)).output_text == "still here"


async def test_a_server_that_goes_down_breaks_the_stream(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, openai_of(server) as client:
        stream = await client.responses.create(input="hi", stream=True)
        await read_until(stream, "response.in_progress")
        server.turnwire.streams.drain()
        with pytest.raises(openai.APIConnectionError):
            await rest_of(stream)


async def test_response_that_must_not_be_stored_is_refused(server: Served, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="store: responses are kept"):
        await client.responses.create(input="hi", store=False)
    assert await server.written() == (0, 0)


# In the background, and again


async def test_a_response_in_the_background_is_polled(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    first = await client.responses.create(input="hi", background=True, conversation="chat")
    second = await client.responses.create(input="and?", background=True, conversation="chat")
    assert (first.status, first.background) in (("queued", True), ("in_progress", True))
    assert (second.status, second.output) == ("queued", [])
    part = await puppet.part()
    part.say("Good ")
    await server.reached(first.id.removeprefix("resp_"), 3)
    seen = await client.responses.retrieve(first.id)
    assert (seen.status, seen.output_text) == ("in_progress", "Good ")
    part.say("day.")
    part.end()
    await server.ended(first.id.removeprefix("resp_"))
    seen = await client.responses.retrieve(first.id)
    assert (seen.status, seen.output_text) == ("completed", "Good day.")
    assert seen.conversation is not None
    assert seen.conversation.id == "chat"
    (await puppet.part()).end()
    await server.ended(second.id.removeprefix("resp_"))


async def test_a_stream_is_resumed_after_any_event_both_ways(rich: Served) -> None:
    async with openai_of(rich) as client:
        whole = await rest_of(await client.responses.create(input="hi", stream=True, background=True))
        response_id = whole[0].response.id
        for number in range(len(whole)):
            rest = await rest_of(await client.responses.retrieve(response_id, stream=True, starting_after=number))
            assert as_json(rest) == as_json(whole[number + 1 :])
        assert as_json(await rest_of(await client.responses.retrieve(response_id, stream=True))) == as_json(whole)
        async with client.responses.stream(response_id=response_id, starting_after=4) as helper:
            seen = [event.sequence_number for event in await rest_of(helper)]
            assert (await helper.get_final_response()).output_text == RICH_TEXT
        assert seen == list(range(5, len(whole)))


async def test_a_live_stream_is_resumed_where_it_broke(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(input="hi", stream=True, background=True)
    part = await puppet.part()
    part.say("Good ", ToolCallEvent("c", "find", {}))
    before = await read_until(stream, "response.function_call_arguments.delta")
    await stream.close()
    part.say(ToolResultEvent("c", "find", True, 1), "day.")
    response_id, last = before[0].response.id, before[-1].sequence_number
    resumed = await client.responses.retrieve(response_id, stream=True, starting_after=last)
    after = await read_until(resumed, "response.output_text.delta")
    part.end()
    after += await rest_of(resumed)
    assert [event.sequence_number for event in before + after] == list(range(len(before + after)))
    whole = await rest_of(await client.responses.retrieve(response_id, stream=True))
    assert as_json(before + after) == as_json(whole)


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "99", "9" * 30])
async def test_resume_after_an_unknown_event_is_refused(rich: Served, number: str) -> None:
    async with openai_of(rich) as client:
        response = await client.responses.create(input="hi")
        with pytest.raises(openai.BadRequestError):
            await client.get(
                f"/responses/{response.id}",
                cast_to=object,
                options={"params": {"stream": "true", "starting_after": number}},
            )


async def test_void_events_are_not_in_the_response(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(input="hi", stream=True)
    asking = asyncio.create_task(client.responses.create(input="hi", conversation="other"))
    for part in (await puppet.part(), await puppet.part()):
        part.say("void")
    await read_until(stream, "response.output_text.delta")
    for part in puppet.parts:
        part.say(RestartEvent(2, "worker_lost"), "Good day.")
    with pytest.raises(openai.APIConnectionError):
        await rest_of(stream)
    for part in puppet.parts:
        part.end()
    response = await within(asking)
    assert response.output_text == "Good day."
    whole = await rest_of(await client.responses.retrieve(response.id, stream=True))
    assert whole[-1].response == response


async def test_a_response_outlives_its_events(rich: Served) -> None:
    async with openai_of(rich) as client:
        before = await client.responses.create(input="hi")
        await rich.turnwire.store.maintain(expire_before=2**45)
        after = await client.responses.retrieve(before.id)
        assert (after.output_text, after.usage, after.status) == (before.output_text, before.usage, before.status)
        with pytest.raises(openai.APIStatusError) as gone:
            await client.responses.retrieve(before.id, stream=True)
        assert (gone.value.status_code, gone.value.code) == (410, "events_gone")


# Conversations


async def test_a_response_is_continued_also_an_earlier_one(serve: Serve, kind: StoreKind) -> None:
    async with serve(recite, store=kind) as server, openai_of(server) as client:
        first = await client.responses.create(input="one")
        second = await client.responses.create(input="two", previous_response_id=first.id)
        assert (second.output_text, second.previous_response_id) == ("user:one | assistant:one | two", first.id)
        other = await client.responses.create(
            input=[{"role": "user", "content": "or"}, {"role": "user", "content": "else"}],
            previous_response_id=first.id,
        )
        assert other.output_text == "user:one | assistant:one | or\n\nelse"
        assert (await client.responses.retrieve(second.id)).previous_response_id == first.id
        (session,) = (await server.http.get("/v1/sessions")).json()["sessions"]
        assert session["turn_count"] == 3


async def test_a_conversation_is_a_session(serve: Serve) -> None:
    async with serve(recite) as server, openai_of(server) as client:
        await client.responses.create(input="one", conversation="chat")
        second = await client.responses.create(input="two", conversation={"id": "chat"})
        assert second.output_text == "user:one | assistant:one | two"
        assert (await server.http.get("/v1/sessions/chat")).json()["turn_count"] == 2


async def test_known_messages_sent_again_are_refused(serve: Serve) -> None:
    async with serve(recite) as server, openai_of(server) as client:
        first = await client.responses.create(input="one", conversation="chat")
        again: Any = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "two"}]
        for where in ({"previous_response_id": first.id}, {"conversation": "chat"}):
            with pytest.raises(openai.BadRequestError, match="only new messages"):
                await client.responses.create(input=again, **where)  # type: ignore[call-overload]


async def test_first_history_is_known_to_all_turns_of_a_conversation(serve: Serve) -> None:
    async with serve(recite) as server, openai_of(server) as client:
        items: Any = [
            {"role": "user", "content": "zero"},
            {"role": "assistant", "content": "0"},
            {"role": "user", "content": "one"},
        ]
        first = await client.responses.create(input=items)
        second = await client.responses.create(input="two", previous_response_id=first.id)
        assert second.output_text.startswith("user:zero | assistant:0 | user:one | ")


async def test_any_turn_is_a_response(rich: Served) -> None:
    turn_id = (await rich.http.post("/chat", json={"message": "hi"})).json()["turn_id"]
    async with openai_of(rich) as client:
        assert (await client.responses.retrieve(f"resp_{turn_id}")).output_text == RICH_TEXT


async def test_any_turn_can_be_read_on_these_wires(rich: Served) -> None:
    turn_id = (await rich.http.post("/chat", json={"message": "hi"})).json()["turn_id"]
    whole = await rich.http.get(f"/v1/responses/resp_{turn_id}?stream=true")
    path = f"/v1/turns/{turn_id}/events"
    assert (await rich.http.get(path, params={"wire": "openai_responses"})).text == whole.text
    assert (await rich.http.get(path, params={"wire": "openai_responses", "segment": "2"})).text == ""
    for wrong in ("0", "x", "-1"):
        refused = await rich.http.get(path, params={"wire": "openai_responses", "segment": wrong})
        assert refused.status_code == 422
    chat = await rich.http.get(path, params={"wire": "openai_chat", "include_usage": "true"})
    assert '"total_tokens":7' in chat.text


# Deleting


async def test_a_deleted_response_is_gone_for_good(serve: Serve, kind: StoreKind) -> None:
    async with serve(recite, store=kind) as server, openai_of(server) as client:
        first = await client.responses.create(input="one")
        second = await client.responses.create(input="two", previous_response_id=first.id)
        third = await client.responses.create(input="three", previous_response_id=second.id)
        deleted = await server.http.delete(f"/v1/responses/{second.id}")
        assert deleted.json() == {"id": second.id, "object": "response", "deleted": True}
        for path in ("", "/input_items", "?stream=true"):
            assert (await server.http.get(f"/v1/responses/{second.id}{path}")).status_code == 404
        assert (await server.http.delete(f"/v1/responses/{second.id}")).status_code == 404
        assert (await server.http.get(f"/v1/turns/{second.id.removeprefix('resp_')}")).status_code == 404
        # What came of it stays, and goes on without it.
        assert (await client.responses.retrieve(third.id)).output_text.endswith("three")
        fourth = await client.responses.create(input="four", previous_response_id=third.id)
        assert fourth.output_text.startswith("user:one | assistant:one | user:three | ")
        for response in (first, third, fourth):
            await client.responses.delete(response.id)
        assert (await server.http.get("/v1/sessions")).json()["sessions"] == []


async def test_a_running_response_is_stopped_and_deleted(server: Served, puppet: Puppet, client: AsyncOpenAI) -> None:
    response = await client.responses.create(input="hi", background=True)
    part = await puppet.part()
    await client.responses.delete(response.id)
    assert part.over.is_set()
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


# The guide


async def test_the_guides_example_is_answered() -> None:
    path = Path(__file__).parents[2] / "docs" / "examples" / "openai_client.py"
    example = runpy.run_path(str(path))
    async with serving(example["app"].lifespan, example["app"]) as server:
        assert await within(example["ask"](f"{server.url}/v1")) == "Good morning."
