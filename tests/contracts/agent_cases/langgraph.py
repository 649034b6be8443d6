"""A LangChain agent, which is a LangGraph graph."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiosqlite
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from openai import DefaultAsyncHttpx2Client

from tests.contracts.office import IDEMPOTENT
from turnwire.agents.langgraph import LangGraphAgent, langchain_tools
from turnwire.tools import Tool as OurTool

NAME = "langgraph"
APIS = ("chat", "responses")
CANNOT = {
    "nested": "a run of the SDK inside a tool ends with its request for approval",
    "bounded": "LangGraph restarts its step count when a graph continues",
    "lists/responses": "ChatOpenAI raises when arguments are JSON, but not an object",
    "reasoning/chat": "ChatOpenAI drops the reasoning that chat servers send",
    "values": "LangChain turns the result of a tool into text before it reports it",
    "woven/responses": "ChatOpenAI loses the arguments of calls whose pieces are interleaved",
}
TOOL_ERROR = "fatal"
UNKNOWN_TOOL = "reported"


def build(
    url: str,
    tools: Sequence[Any],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
) -> Any:
    client, model = _model(url, api, timeout)
    saver = AsyncSqliteSaver(aiosqlite.connect(folder / "threads.db")) if folder else None
    ours = langchain_tools([each for each in tools if isinstance(each, OurTool)])
    theirs = [each for each in tools if not isinstance(each, OurTool)]
    graph: Any = create_agent(
        model,
        tools=[*ours, *theirs],
        system_prompt="Be kind.",
        middleware=[HumanInTheLoopMiddleware(dict.fromkeys(asks, True))] if asks else [],
        checkpointer=saver,
    )
    graph.client, graph.model = client, model
    return graph


def delegate(url: str, tools: Sequence[Any], *, api: Any, timeout: float) -> Any:
    client, model = _model(url, api, timeout)
    scout: Any = create_agent(model, tools=tools, name="Scout")

    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        state = await scout.ainvoke({"messages": [HumanMessage(question)]})
        return state["messages"][-1].text

    graph: Any = create_agent(model, tools=[ask_scout], name="Chief")
    graph.client = client
    return graph


def build_office(url: str, tools: Mapping[str, Any]) -> Any:
    client, model = _model(url, "chat", 60)
    scout: Any = create_agent(model, tools=[tools["look"]], name="Scout")

    async def ask_scout(input: str) -> str:
        """Ask the scout."""
        state = await scout.ainvoke({"messages": [HumanMessage(input)]})
        return state["messages"][-1].text

    own = [tools["look"], tools["count"], tools["pay"], tools["send"], tools["pick"], ask_scout]
    graph: Any = create_agent(model, tools=own, middleware=[HumanInTheLoopMiddleware({"send": True})], name="Desk")
    graph.client = client
    return graph


def adapt_office(built: Any) -> LangGraphAgent:
    return LangGraphAgent(built, idempotent=IDEMPOTENT)


def _model(url: str, api: Any, timeout: float) -> tuple[Any, ChatOpenAI]:
    # A separate client that can be closed; the default one is shared by all models of the process.
    client = DefaultAsyncHttpx2Client(timeout=timeout)
    model = ChatOpenAI(
        model="small",
        base_url=url,
        api_key="none",  # type: ignore[arg-type]
        max_retries=0,
        timeout=timeout,
        stream_usage=True,
        http_async_client=client,
        use_responses_api=api == "responses",
    )
    return client, model


def adapt(built: Any, *, max_turns: int) -> LangGraphAgent:
    # A step of the graph is one model call, or the tools that the model called.
    return LangGraphAgent(built, config={"recursion_limit": 2 * max_turns})


def allow(built: Any, options: bool | Collection[str]) -> LangGraphAgent:
    return LangGraphAgent(built, takes_model_options=options)


async def close(built: Any) -> None:
    await built.client.aclose()
    if built.checkpointer:
        # A worker that is lost between a write and its commit leaves a transaction open, and its frames keep the
        # cursor. Until that is collected, SQLite keeps the transaction of the closed connection, and its lock.
        async with built.checkpointer.lock:
            with suppress(ValueError):  # It was never opened.
                await built.checkpointer.conn.rollback()
            await built.checkpointer.conn.close()
