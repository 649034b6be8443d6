"""`/v1/chat/completions` and `/v1/models`, asked by OpenAI's own client over a real socket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from tests.server.conftest import Serve
from tests.server.openai_clients import openai_error, openai_of
from tests.server.readers import by_user, user
from tests.serving import PATIENCE, Puppet, Served, quick_settings, saying, serving, within
from turnwire import Turn, Turnwire
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, RestartEvent, ToolCallEvent, ToolResultEvent, UsageEvent

HELLO: Any = [{"role": "user", "content": "hi"}]


async def recite(turn: Turn) -> AsyncIterator[str]:
    """Says what it has been told, and in which words."""
    history = [f"{message.role}:{message.content or len(message.tool_calls)}" for message in turn.history]
    yield " | ".join([*history, turn.message])


@pytest.fixture
async def client(server: Served) -> AsyncIterator[AsyncOpenAI]:
    async with openai_of(server) as client:
        yield client


async def rest_of(stream: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [chunk async for chunk in stream]


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


# Asking


async def test_a_question_is_answered(serve: Serve) -> None:
    lines = (
        "Good ",
        ToolCallEvent("c", "find", {}),
        ToolResultEvent("c", "find", True, 1),
        "day.",
        UsageEvent("m", 1, 2),
    )
    async with serve(saying(*lines)) as server, openai_of(server) as client:
        answer = await client.chat.completions.create(model="turnwire", messages=HELLO)
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("Good day.", "stop")
        assert answer.usage is not None
        assert (answer.model, answer.usage.total_tokens) == ("default", 3)
        turn_id = answer.id.removeprefix("chatcmpl-")
        assert (await server.snapshot(turn_id))["outcome"] == "completed"


async def test_stream_sends_tokens_as_they_come(puppet: Puppet, client: AsyncOpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = await client.chat.completions.create(model="", messages=HELLO, stream=True, stream_options=options)
    part = await puppet.part()
    part.say("Good ")
    first = [await within(anext(stream)) for _ in range(2)]
    assert text_of(first) == "Good "
    part.say("day.", UsageEvent("m", 1, 2))
    part.end()
    rest = await rest_of(stream)
    assert text_of(rest) == "day."
    assert rest[-2].choices[0].finish_reason == "stop"
    assert (rest[-1].choices, rest[-1].usage.total_tokens) == ([], 3)
    assert len({chunk.id for chunk in first + rest}) == 1


async def test_a_quiet_stream_stays_readable(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=0.03) as server, openai_of(server) as client:
        stream = await client.chat.completions.create(model="", messages=HELLO, stream=True)
        part = await puppet.part()
        raw = await server.http.get("/readyz")
        assert raw.status_code == 200
        async with server.stream("GET", stream.response.headers["location"]) as watching:
            received = b""
            async with asyncio.timeout(PATIENCE):
                async for chunk in watching.response.aiter_raw():
                    received += chunk
                    if received.count(b": hb\n") > 2:
                        break
        assert b": hb\n\n" not in received
        part.say("still here")
        part.end()
        assert text_of(await rest_of(stream)) == "still here"


async def test_the_clients_messages_are_the_history(serve: Serve) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    async with serve(recite) as server, openai_of(server) as client:
        expected = "user:one | assistant:1 | tool:found | assistant:two | three"
        for _ in range(2):  # Each call is a session of its own.
            answer = await client.chat.completions.create(model="", messages=messages)
            assert answer.choices[0].message.content == expected
        assert await server.written() == (2, 2)


async def test_a_named_session_has_its_own_history(serve: Serve) -> None:
    async with serve(recite) as server, openai_of(server, default_headers={"X-Session-Id": "chat"}) as client:
        earlier: Any = [{"role": "user", "content": "zero"}, {"role": "assistant", "content": "0"}]
        first = await client.chat.completions.create(model="", messages=[*earlier, {"role": "user", "content": "one"}])
        assert first.choices[0].message.content == "user:zero | assistant:0 | one"
        second = await client.chat.completions.create(model="", messages=[*earlier, {"role": "user", "content": "two"}])
        expected = "user:zero | assistant:0 | user:one | assistant:user:zero | assistant:0 | one | two"
        assert second.choices[0].message.content == expected
        assert await server.written() == (1, 2)


async def test_the_same_key_again_joins_the_same_turn(serve: Serve) -> None:
    headers = {"X-Session-Id": "chat", "Idempotency-Key": "k"}
    async with serve(recite) as server, openai_of(server, default_headers=headers) as client:
        messages: Any = [{"role": "user", "content": "zero"}, *HELLO]
        first, again = [await client.chat.completions.create(model="", messages=messages) for _ in range(2)]
        assert first == again
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="", messages=HELLO)
        assert refused.value.code == "idempotency_conflict"
        assert await server.written() == (1, 1)


async def test_request_options_reach_the_agent(puppet: Puppet, client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "developer", "content": "Be brief."}, *HELLO]
    asking = client.chat.completions.create(model="", messages=messages, temperature=0.2, max_tokens=5, user="u")
    answering = asyncio.create_task(asking)
    part = await puppet.part()
    part.end()
    await within(answering)
    assert part.turn.options == {"instructions": "Be brief.", "temperature": 0.2, "max_tokens": 5, "user": "u"}


# How it ends


async def test_a_failure_in_a_stream_raises(puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="", messages=HELLO, stream=True)
    part = await puppet.part()
    part.say("par")
    part.end(AgentError("The model is away.", code="model_unavailable"))
    with pytest.raises(openai.APIError, match="The model is away") as raised:
        await rest_of(stream)
    assert raised.value.code == "model_unavailable"


@pytest.mark.parametrize("retryable", [False, True])
async def test_client_retries_only_retryable_failures(serve: Serve, retryable: bool) -> None:
    calls = 0

    async def failing(turn: Turn) -> AsyncIterator[str]:
        nonlocal calls
        calls += 1
        if calls < 2:
            raise AgentError("Not now.", retryable=retryable)
        yield "now"

    async with serve(failing) as server, openai_of(server, max_retries=2) as client:
        asking = client.chat.completions.create(model="", messages=HELLO)
        if retryable:
            assert (await within(asking)).choices[0].message.content == "now"
        else:
            with pytest.raises(openai.InternalServerError, match=r"Not now\."):
                await within(asking)
        assert calls == (2 if retryable else 1)


async def test_cancelled_answer_has_the_length_finish_reason(
    server: Served, puppet: Puppet, client: AsyncOpenAI
) -> None:
    stream = await client.chat.completions.create(model="", messages=HELLO, stream=True)
    answering = asyncio.create_task(client.chat.completions.create(model="", messages=HELLO))
    for _ in range(2):
        part = await puppet.part()
        part.say("par")
        await server.reached(part.turn.id, 3)
        await server.http.post(f"/v1/turns/{part.turn.id}/cancel")
    chunks = await rest_of(stream)
    (choice,) = (await within(answering)).choices
    assert (text_of(chunks), chunks[-1].choices[0].finish_reason) == ("par", "length")
    assert (choice.message.content, choice.finish_reason) == ("par", "length")


async def test_restart_breaks_the_stream(puppet: Puppet, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="", messages=HELLO, stream=True)
    part = await puppet.part()
    part.say("void")
    assert text_of([await within(anext(stream)) for _ in range(2)]) == "void"
    part.say(RestartEvent(2, "worker_lost"))
    with pytest.raises(openai.APIConnectionError):
        await rest_of(stream)
    part.end()


# Waiting for a person


async def careful(turn: Turn) -> AsyncIterator[Any]:
    yield "May I? "
    requests = [ApprovalRequestEvent(name, "pay", {"amount": 40}) for name in ("c1", "c2")]
    decisions = await asyncio.gather(*map(approval, requests))
    for decision in decisions:
        yield ToolResultEvent(decision.call_id, "pay", decision.approved, decision.reason)
    yield " ".join(f"{decision.approved}:{decision.reason}" for decision in decisions)


def answered(message: Any, *answers: str) -> Any:
    """Return the conversation with answers to the calls of a message."""
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": content}
        for call, content in zip(message.tool_calls, answers, strict=False)
    ]
    return [*HELLO, {"role": "assistant", "content": message.content, "tool_calls": calls_of(message)}, *results]


def calls_of(message: Any) -> Any:
    return [call.model_dump() for call in message.tool_calls]


async def test_waiting_call_is_a_tool_call(serve: Serve) -> None:
    async with serve(careful) as server, openai_of(server) as client:
        (choice,) = (await within(client.chat.completions.create(model="", messages=HELLO))).choices
        assert (choice.message.content, choice.finish_reason) == ("May I? ", "tool_calls")
        assert [call["function"] for call in calls_of(choice.message)] == [
            {"name": "pay", "arguments": '{"amount":40}'}
        ] * 2
        decided = answered(choice.message, "approved", '{"approved": false, "reason": "too dear"}')
        (choice,) = (await within(client.chat.completions.create(model="", messages=decided))).choices
        assert (choice.message.content, choice.finish_reason) == ("True:None False:too dear", "stop")
        assert await server.written() == (1, 1)


async def test_decision_continues_the_stream(serve: Serve) -> None:
    async with serve(careful) as server, openai_of(server) as client:
        chunks = await rest_of(await client.chat.completions.create(model="", messages=HELLO, stream=True))
        assert (text_of(chunks), chunks[-1].choices[0].finish_reason) == ("May I? ", "tool_calls")
        (message,) = (choice.message for choice in (await _repeat(server, client, chunks)).choices)
        decided = answered(message, "denied", "approved")
        for _ in range(2):  # Deciding twice is deciding once.
            stream = await client.chat.completions.create(model="", messages=decided, stream=True)
            rest = await rest_of(stream)
            assert (text_of(rest), rest[-1].choices[0].finish_reason) == ("False:None True:None", "stop")
            assert rest[0].choices[0].delta.role == "assistant"
        whole = await server.http.get(stream.response.headers["location"])
        assert whole.text.count("[DONE]") == 2


async def _repeat(server: Served, client: AsyncOpenAI, chunks: list[Any]) -> Any:
    """Return the waiting answer as one object, made of its chunks."""
    calls = [call.model_dump() for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    message = {"role": "assistant", "content": text_of(chunks), "tool_calls": calls}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return ChatCompletion.model_validate({**chunks[0].model_dump(), "object": "chat.completion", "choices": [choice]})


async def test_invalid_tool_message_is_no_decision(serve: Serve) -> None:
    async with (
        serve(careful, authenticate=by_user) as server,
        user(server, "bob") as bob,
        openai_of(server, default_headers={"X-User": "anna"}) as client,
    ):
        (choice,) = (await within(client.chat.completions.create(model="", messages=HELLO))).choices
        no_decision = '{"approved": 1}'
        for words in ("Error: unknown tool", "true", "{}", no_decision, "", "Approved?"):
            with pytest.raises(openai.BadRequestError, match="a call that waits"):
                await client.chat.completions.create(model="", messages=answered(choice.message, "approved", words))
        with pytest.raises(openai.BadRequestError, match="missing: 'c2'"):
            await client.chat.completions.create(model="", messages=answered(choice.message, "approved"))
        decided = answered(choice.message, "approved", "approved")
        error = await bob.http.post("/v1/chat/completions", json={"messages": decided})
        assert "no turn of yours" in openai_error(error, 400)["message"]
        unknown: Any = [*decided[:3], {**decided[3], "tool_call_id": f"{decided[3]['tool_call_id']}x"}]
        with pytest.raises(openai.BadRequestError, match="there is no request for approval"):
            await client.chat.completions.create(model="", messages=unknown)
        (choice,) = (await within(client.chat.completions.create(model="", messages=decided))).choices
        assert choice.finish_reason == "stop"


async def test_message_instead_of_decision_interrupts_the_turn(serve: Serve) -> None:
    async with serve(careful) as server, openai_of(server, default_headers={"X-Session-Id": "shop"}) as client:
        first = await within(client.chat.completions.create(model="", messages=HELLO))
        await within(client.chat.completions.create(model="", messages=HELLO))
        assert (await server.snapshot(first.id.removeprefix("chatcmpl-")))["outcome"] == "cancelled"


# In a browser


async def test_preflight_allows_the_headers_of_libraries_and_pages(serve: Serve) -> None:
    requested = ["authorization", "x-session-id", "x-stainless-os", "x-tenant", "not a name", *map(str, range(100))]
    asking = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ", ".join(requested),
    }
    async with serve(allowed_origins=["https://page.example"]) as server:
        answer = await server.http.options("/v1/chat/completions", headers=asking)
        allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
        assert set(requested[:4]) <= set(allowed)
        assert "not a name" not in allowed
        assert len(allowed) == len(set(allowed)) < 50


# Models


async def test_agents_are_models(tmp_path: Path) -> None:
    agents = {"writer": saying("I write."), "org/reader": saying("I read."), "turnwire": saying("I am me.")}
    turnwire = Turnwire(agents=agents, store="memory", settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, openai_of(server) as client:
        assert [model.id async for model in client.models.list()] == list(agents)
        for name, words in (("org/reader", "I read."), ("turnwire", "I am me."), ("", "I write.")):
            answer = await client.chat.completions.create(model=name, messages=HELLO)
            assert answer.choices[0].message.content == words
            assert (await client.responses.create(model=name, input="hi")).output_text == words
        assert (await client.models.retrieve("writer")).owned_by == "turnwire"
        assert (await server.http.get("/v1/models/org/reader")).json()["id"] == "org/reader"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nobody")
        assert openai_error(await server.http.get("/v1/models/turnwire/x"), 404)["code"] == "model_not_found"


async def test_name_of_the_default_agent_is_a_model(serve: Serve) -> None:
    async with serve(saying("x")) as server, openai_of(server) as client:
        assert (await client.models.retrieve("turnwire")).id == "turnwire"
