"""Factories: agents that are made on the server's event loop, and closed with the server."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from tests.contracts.turns import followed
from turnwire import Turn, Turnwire
from turnwire.agents.loader import as_agent, load_agent
from turnwire.core.log.events import ResponseEvent
from turnwire.server.messages import MessageBody


async def ask(server: Turnwire, message: str, session_id: str | None = None) -> tuple[str, str]:
    """Return the answer and the session."""
    body = MessageBody.model_validate({"message": message, "session_id": session_id})
    turn = (await server.start("ann", body)).record
    events = [logged.event for logged in await followed(server.store, turn.id)]
    return next(event.content for event in events if isinstance(event, ResponseEvent)), turn.session_id


async def echo(turn: Turn) -> AsyncIterator[str]:
    yield turn.message


async def test_checkpointer_is_opened_and_closed_on_the_loop_of_the_server(tmp_path: Path) -> None:
    savers: list[Any] = []

    async def count(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            savers.append(saver)
            builder = StateGraph(MessagesState)
            builder.add_node(count)
            builder.add_edge(START, "count")
            yield builder.compile(checkpointer=saver)
        savers.clear()

    server = Turnwire(agent=make, store="memory")
    assert not savers
    async with server.lifespan():
        answer, session_id = await ask(server, "one")
        assert answer == "1"
        assert (await ask(server, "two", session_id))[0] == "3"
        assert len(savers) == 1
    assert not savers


async def test_factory_is_opened_and_closed_in_one_task() -> None:
    tasks: list[Any] = []

    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        async with asyncio.timeout(60):  # Like a cancel scope, it must be left in the task that entered it.
            tasks.append(asyncio.current_task())
            yield echo
            tasks.append(asyncio.current_task())

    server = Turnwire(agents={"a": make}, store="memory")
    await asyncio.create_task(server.open())
    assert (await ask(server, "hello"))[0] == "hello"
    await asyncio.create_task(server.close())
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_agent_of_a_factory_is_closed_by_the_factory_alone() -> None:
    closed: list[str] = []

    class Greeter:
        async def answer(self, turn: Turn) -> str:
            return "hello"

        async def close(self) -> None:
            closed.append("by Turnwire")

    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        yield Greeter()
        closed.append("by the factory")

    async with Turnwire(agent=make, store="memory").lifespan():
        pass
    assert closed == ["by the factory"]


async def test_factory_that_fails_names_its_agent() -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        raise ConnectionError("no database")
        yield echo

    with pytest.raises(ConnectionError, match="no database") as caught:
        await Turnwire(agents={"clerk": make}, store="memory").open()
    assert "'clerk'" in caught.value.__notes__[0]


async def test_factory_that_yields_no_agent_is_refused() -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        yield 7

    with pytest.raises(TypeError, match="an object of type `int` is not an agent"):
        await Turnwire(agent=make, store="memory").open()


async def test_factory_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_here.py").write_text(
        "from contextlib import asynccontextmanager\n\n"
        "async def echo(turn):\n    yield turn.message\n\n"
        "@asynccontextmanager\nasync def make():\n    yield echo\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    server = Turnwire(agents={"clerk": load_agent("made_here:make")}, store="memory")
    async with server.lifespan():
        assert (await ask(server, "hello"))[0] == "hello"


def test_context_manager_that_needs_arguments_is_no_factory() -> None:
    @asynccontextmanager
    async def make(turn: Turn) -> AsyncIterator[Any]:
        yield echo

    with pytest.raises(TypeError, match="without arguments"):
        as_agent(make)
