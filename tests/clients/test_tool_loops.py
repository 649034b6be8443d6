"""Tests of Python clients that run tools by themselves: LangChain, and the OpenAI Agents SDK as a client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from tests.clients.scenes import TwoWayAgent
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


def _locate() -> str:
    """Find the user."""
    return "Bern"


def _clock() -> str:
    """Read the clock."""
    return "noon"
