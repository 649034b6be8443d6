"""Tests of Python clients that run tools by themselves: LangChain, and the OpenAI Agents SDK as a client."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.scenes import RICH, TwoWayAgent, play
from tests.server.conftest import Serve
from tests.serving import Served

pytestmark = pytest.mark.timeout(120)
LAST = " Still in Bern."


@tool
def locate() -> str:
    """Find the user."""
    return "Bern"


@tool
def clock() -> str:
    """Read the clock."""
    return "noon"


@asynccontextmanager
async def chat_model(server: Served, **options: Any) -> AsyncIterator[ChatOpenAI]:
    """Yield a model whose connections are closed at the end; by default LangChain keeps them for ever."""
    async with httpx.AsyncClient() as http:
        yield ChatOpenAI(
            model="turnwire",
            base_url=f"{server.url}/v1",
            api_key="none",  # type: ignore[arg-type]
            max_retries=0,
            http_async_client=http,
            **options,
        )


@pytest.mark.parametrize("uses_responses", [False, True])
async def test_langchain_bound_tools_continue_the_turn_after_a_restart(serve: Serve, uses_responses: bool) -> None:
    messages: list[Any] = [HumanMessage("locate")]
    async with (
        serve(TwoWayAgent(), store="sqlite") as server,
        chat_model(server, use_responses_api=uses_responses) as model,
    ):
        called = await model.bind_tools([locate, clock]).ainvoke(messages)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("locate", {"exact": True})
    messages += [called, ToolMessage("Bern", tool_call_id=call["id"])]
    async with (
        serve(TwoWayAgent(), store="sqlite") as server,
        chat_model(server, use_responses_api=uses_responses) as model,
    ):
        answer = await model.bind_tools([locate, clock]).ainvoke(messages)
        assert await server.written() == (1, 1)
    assert answer.text == "You are in Bern."


async def test_langchain_agent_runs_its_tools(serve: Serve) -> None:
    async with serve(TwoWayAgent()) as server, chat_model(server) as model:
        agent: Any = create_agent(model, [locate, clock])
        state = await agent.ainvoke({"messages": [HumanMessage("mixed")]})
        assert await server.written() == (1, 1)
    assert state["messages"][-1].text == LAST
    assert [message.content for message in state["messages"] if message.type == "tool"] == ["Bern", "noon", "Bern"]


@pytest.mark.parametrize("model_class", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_agents_sdk_runs_its_tools(serve: Serve, model_class: Any) -> None:
    async with (
        serve(TwoWayAgent()) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        model: Model = model_class(model="turnwire", openai_client=client)
        functions = [
            function_tool(_locate, name_override="locate"),
            function_tool(_clock, name_override="clock"),
        ]
        agent = Agent(name="front", model=model, tools=[*functions])
        result = await Runner.run(agent, "mixed", run_config=RunConfig(tracing_disabled=True))
        assert await server.written() == (1, 1)
    assert result.final_output == LAST


@pytest.mark.parametrize("model_class", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_agents_sdk_tool_continues_the_turn_after_a_restart(serve: Serve, model_class: Any) -> None:
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        server = await first.enter_async_context(serve(TwoWayAgent(), store="sqlite"))
        client = await second.enter_async_context(
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        )

        @function_tool
        async def locate() -> str:
            """Find the user, while the server is restarted."""
            nonlocal server
            await first.aclose()
            server = await second.enter_async_context(serve(TwoWayAgent(), store="sqlite"))
            client.base_url = f"{server.url}/v1"
            return "Bern"

        agent = Agent(name="front", model=model_class(model="turnwire", openai_client=client), tools=[locate])
        result = await Runner.run(agent, "locate", run_config=RunConfig(tracing_disabled=True))
        assert await server.written() == (1, 1)
    assert result.final_output == "You are in Bern."


def _locate() -> str:
    """Find the user."""
    return "Bern"


def _clock() -> str:
    """Read the clock."""
    return "noon"


# Tools of the server, for clients that declare none


@pytest.fixture
async def calling(serve: Serve) -> AsyncIterator[Served]:
    """A server whose responses show its own calls as `mcp_call`."""
    async with serve(play, openai={"server_calls": "mcp_call"}) as server:
        yield server


async def test_agents_sdk_does_not_run_tools_of_the_server(calling: Served) -> None:
    async with AsyncOpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0) as client:
        agent = Agent(name="front", model=OpenAIResponsesModel(model="turnwire", openai_client=client))
        config = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, "rich", run_config=config)
        streamed = Runner.run_streamed(agent, "rich", run_config=config)
        async for _ in streamed.stream_events():
            pass
    assert result.final_output == streamed.final_output == RICH


async def test_langchain_lists_no_calls_of_the_server(calling: Served) -> None:
    async with chat_model(calling, use_responses_api=True) as model:
        answer = await model.ainvoke([HumanMessage("rich")])
        chunks = [chunk async for chunk in model.astream([HumanMessage("rich")])]
    assert (answer.text, answer.tool_calls) == (RICH, [])
    assert "".join(chunk.text for chunk in chunks) == RICH


async def test_pydantic_ai_takes_the_answer_of_an_agent_with_tools(calling: Served) -> None:
    async with AsyncOpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0) as client:
        model = PydanticResponsesModel("turnwire", provider=OpenAIProvider(openai_client=client))
        result = await PydanticAgent(model).run("rich")
    assert result.output == RICH


async def test_request_may_ask_for_calls_in_this_form(serve: Serve) -> None:
    async with (
        serve(play) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        plain = await client.responses.create(model="turnwire", input="rich")
        included: Any = ["mcp_call"]
        response = await client.responses.create(model="turnwire", input="rich", include=included)
        again = await client.responses.retrieve(response.id)
        events = [event async for event in await client.responses.retrieve(response.id, stream=True)]
        # The items of an answer may be sent back as history.
        items: Any = [item.model_dump(exclude_none=True) for item in response.output]
        sent: Any = [{"role": "user", "content": "rich"}, *items, {"role": "user", "content": "plain"}]
        following = await client.responses.create(model="turnwire", input=sent)
    assert {"function_call", "function_call_output"} <= {item.type for item in plain.output}  # type: ignore[comparison-overlap]
    kinds = [item.type for item in response.output]
    assert kinds.count("mcp_call") == 2
    assert not {"function_call", "function_call_output"} & set(kinds)
    assert [item.type for item in again.output] == kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert following.output_text == "Plain answer."


async def test_approval_of_a_call_in_this_form(calling: Served) -> None:
    async with AsyncOpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0) as client:
        first = await client.responses.create(model="turnwire", input="pay")
        (request,) = [item for item in first.output if item.type == "mcp_approval_request"]
        decision: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
        second = await client.responses.create(model="turnwire", previous_response_id=first.id, input=decision)
    assert "function_call" not in [item.type for item in (*first.output, *second.output)]
    (call,) = [item for item in second.output if item.type == "mcp_call"]
    assert call.status == "completed"
