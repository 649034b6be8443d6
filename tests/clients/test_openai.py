"""Tests of OpenAI's own clients for Node and Python."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest
from llm.default_plugins.openai_models import Chat
from openai import AsyncOpenAI
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.clients.conftest import Run
from tests.clients.scenes import CLIENT_TOOLS, RICH, TwoWayAgent, play
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.server.conftest import Serve
from tests.serving import Puppet, Served, within

__all__ = ["lost_connections_are_collected"]
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


@IGNORED  # The client never closes its connections.
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_llm_reads_the_answer_and_its_usage_which_is_0_if_unknown(serve: Serve, is_streamed: bool) -> None:
    def ask(scene: str) -> tuple[str, int, int]:
        response: Any = model.prompt(scene, stream=is_streamed, key="none")
        return response.text(), response.usage().input, response.usage().output

    async with serve(play) as server:
        model = Chat("turnwire", model_name="turnwire", api_base=f"{server.url}/v1", key="none")
        assert await within(asyncio.to_thread(ask, "plain")) == ("Plain answer.", 0, 0)
        assert await within(asyncio.to_thread(ask, "rich")) == (RICH, 11, 7)


def check_strictly(form: Any, value: dict[str, Any]) -> None:
    """Check a value against a type of OpenAI's library, which does so in no request."""
    if error := value.get("response", value).get("error"):
        assert (error["code"], error["message"]) == ("model_away", "the model is away")
        error["code"] = "server_error"  # The code of a turn is its own.
    TypeAdapter(form).validate_json(json.dumps(value), strict=True)


def events_of(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line[len("data: ") :]) for line in stream.split("\n") if line.startswith("data: {")]


@pytest.mark.parametrize("calls", ["function_call", "mcp_call"])
async def test_everything_that_is_answered_is_of_the_types_of_the_library(serve: Serve, calls: str) -> None:
    kinds: set[str] = set()
    tools = [{"type": "function", "strict": False, **tool} for tool in CLIENT_TOOLS]
    for agent, scenes, more in (
        (play, ("plain", "rich", "pay", "fail"), {}),
        (TwoWayAgent(), ("mixed",), {"tools": tools}),
    ):
        async with serve(agent, openai={"server_calls": calls}) as server:
            post = server.http.post
            for scene in scenes:
                body = {"model": "turnwire", "input": scene, "metadata": {"a": "b"}, **more}
                check_strictly(Response, (await post("/v1/responses", json=body)).json())
                for event in events_of((await post("/v1/responses", json={**body, "stream": True})).text):
                    kinds.add(event["type"])
                    if event["type"] != "keepalive":  # An event that the API does not have.
                        check_strictly(ResponseStreamEvent, event)
                messages = [{"role": "user", "content": scene}]
                if agent is play and scene != "fail":
                    check_strictly(
                        ChatCompletion, (await post("/v1/chat/completions", json={"messages": messages})).json()
                    )
                    options = {"stream": True, "stream_options": {"include_usage": True}}
                    streamed = await post("/v1/chat/completions", json={"messages": messages, **options})
                    for chunk in events_of(streamed.text):
                        check_strictly(ChatCompletionChunk, chunk)
            for model in (await server.http.get("/v1/models")).json()["data"]:
                check_strictly(Model, model)
    assert kinds >= {
        *("response.created", "response.completed", "response.failed", "response.reasoning_summary_text.delta"),
        *("response.output_text.annotation.added", "response.function_call_arguments.done", "keepalive"),
    }


async def test_provider_of_the_ai_sdk_reads_an_agent_with_tools_over_both_apis(serve: Serve, run: Run) -> None:
    async with (
        serve(play, openai={"server_calls": "mcp_call"}) as server,
        run("openai.mjs", server.url, "ai-sdk", "rich") as script,
    ):
        reports = [await script.next() for _ in range(2)]
        await script.ended()
    assert reports == [{"text": RICH, "streamed": RICH, "usage": 11, "reason": "stop"}] * 2


# Functions of the client

OUTPUTS = {"locate": "Bern", "clock": "noon"}
MIXED = "Wait. You are in Bern at noon. Still in Bern."


async def test_node_run_tools_runs_the_functions_of_a_turn(serve: Serve, run: Run) -> None:
    async with serve(TwoWayAgent()) as server, run("openai.mjs", server.url, "tools", "mixed") as script:
        report = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert report["text"] == " Still in Bern."
    assert report["roles"] == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("form", ["whole", "streamed"])
async def test_node_run_tools_continues_the_turn_after_a_restart(serve: Serve, run: Run, form: str) -> None:
    async with AsyncExitStack() as stack:
        async with serve(TwoWayAgent(), store="sqlite") as server:
            script = await stack.enter_async_context(run("openai.mjs", server.url, "tools-restart", "locate", form))
            assert await script.next() == {"called": "locate"}
        async with serve(TwoWayAgent(), store="sqlite") as server:
            await script.send(server.url)
            report = await script.next()
            await script.ended()
            assert await server.written() == (1, 1)
    assert report["text"] == "You are in Bern."


async def test_python_completion_with_functions_resends_its_history_and_continues_the_turn(serve: Serve) -> None:
    tools: Any = [{"type": "function", "function": tool} for tool in CLIENT_TOOLS]
    messages: Any = [{"role": "user", "content": "mixed"}]
    text = ""
    for _ in range(3):
        # Every request goes to a new process, which knows nothing of the one before but the store.
        async with serve(TwoWayAgent(), store="sqlite") as server, client_of(server) as client:
            answer = await client.chat.completions.create(model="turnwire", messages=messages, tools=tools)
            assert await server.written() == (1, 1)
        (choice,) = answer.choices
        text += choice.message.content or ""
        messages.append(choice.message.model_dump(exclude_none=True))
        calls: Any = choice.message.tool_calls or []
        assert (choice.finish_reason == "tool_calls") is bool(calls)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": OUTPUTS[call.function.name]} for call in calls
        ]
    assert (text, choice.finish_reason) == (MIXED, "stop")


@pytest.mark.parametrize("is_stateless", [True, False])
async def test_python_response_with_functions_continues_the_turn(serve: Serve, is_stateless: bool) -> None:
    tools: Any = [{"type": "function", "strict": False, **tool} for tool in CLIENT_TOOLS]
    items: Any = [{"role": "user", "content": "mixed"}]
    previous: Any = openai.omit
    text, kinds = "", []
    for _ in range(3):
        async with serve(TwoWayAgent(), store="sqlite") as server, client_of(server) as client:
            response = await client.responses.create(
                model="turnwire", input=items, tools=tools, previous_response_id=previous
            )
            assert await server.written() == (1, 1)
        text += response.output_text
        kinds += [item.type for item in response.output]
        assert [tool.name for tool in response.tools if tool.type == "function"] == list(OUTPUTS)
        calls = [item for item in response.output if item.type == "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": call.call_id, "output": OUTPUTS[call.name]} for call in calls
        ]
        if is_stateless:
            items += [*(item.model_dump(exclude_none=True) for item in response.output), *outputs]
        else:
            items, previous = outputs, response.id
    assert (text, response.status) == (MIXED, "completed")
    # A client runs every `function_call`, so the server's own call is of another type.
    assert kinds == ["message", "mcp_call", "function_call", "function_call", "message", "function_call", "message"]


async def test_python_streamed_completion_ends_with_the_call_and_goes_on(serve: Serve) -> None:
    tools: Any = [{"type": "function", "function": tool} for tool in CLIENT_TOOLS]
    messages: Any = [{"role": "user", "content": "locate"}]
    async with serve(TwoWayAgent()) as server, client_of(server) as client:
        async with client.chat.completions.stream(model="turnwire", messages=messages, tools=tools) as stream:
            waiting = (await stream.get_final_completion()).choices[0]
        (call,) = waiting.message.tool_calls or []
        assert (waiting.finish_reason, call.function.name, json.loads(call.function.arguments)) == (
            *("tool_calls", "locate"),
            {"exact": True},
        )
        messages += [waiting.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)]
        messages[-1]["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": "locate", "arguments": "{}"}}
        ]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "Bern"}]
        async with client.chat.completions.stream(model="turnwire", messages=messages, tools=tools) as stream:
            answered = (await stream.get_final_completion()).choices[0]
        assert await server.written() == (1, 1)
    assert (answered.finish_reason, answered.message.content) == ("stop", "You are in Bern.")


async def test_question_is_text_where_the_api_has_no_form_for_it(serve: Serve) -> None:
    async with serve(TwoWayAgent()) as server, client_of(server) as client:
        completion = await client.chat.completions.create(
            model="turnwire", messages=[{"role": "user", "content": "colour"}]
        )
        response = await client.responses.create(model="turnwire", input="colour")
    (choice,) = completion.choices
    assert choice.finish_reason == "stop"
    assert (choice.message.content or "").startswith("Wait. \n\nWhich colour?\n\n[The agent waits")
    assert "Which colour?\n\n[The agent waits" in response.output_text


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "no name"}}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "function": {"name": "ledger"}}]}, None),
        ({"tools": [{"type": "function", "function": CLIENT_TOOLS[0]}], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_tools_that_cannot_be_offered_are_refused(serve: Serve, changes: Any, param: str | None) -> None:
    async with serve(TwoWayAgent()) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="turnwire", messages=[{"role": "user", "content": "locate"}], **changes
            )
        assert await server.written() == (0, 0)
    assert refused.value.param == param


async def test_functions_are_not_offered_with_tool_choice_none(serve: Serve) -> None:
    tools: Any = [{"type": "function", "function": CLIENT_TOOLS[0]}]
    async with serve(play) as server, client_of(server) as client:
        answer = await client.chat.completions.create(
            model="turnwire", messages=[{"role": "user", "content": "plain"}], tools=tools, tool_choice="none"
        )
    assert answer.choices[0].message.content == "Plain answer."
