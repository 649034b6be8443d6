"""Turns of unmodified LangGraph graphs and LangChain runnables that lose their worker and continue on another one."""

import asyncio
import json
import operator
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import aiosqlite
import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt
from pydantic import BaseModel

from tests.contracts.agent_cases.langgraph import _model
from tests.contracts.dying_store import Outcome, run_turn
from tests.core.desk import (
    Gate,
    completed_answer,
    lose_worker,
    open_actor_desk,
    start_drain,
    wait_for_events,
    wait_until_suspended,
)
from tests.examples import runs_all
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Request, ScriptedModel, calls, fails, model_server, says
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.agents.langgraph.continuation import dump_result, load_result
from turnwire.agents.langgraph.runner import install_hooks
from turnwire.core.contracts.agents import resumes
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import RestartEvent, TokenEvent, ToolResultEvent
from turnwire.core.log.turns import TurnRecord

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED


class Office:
    """Graphs and their tools, which count their runs, and a model that answers by what it reads."""

    def __init__(self, server: ScriptedModel) -> None:
        self.server = server
        self.done: Counter[str] = Counter()
        self.client, self.model = _model(server.url, "chat", 30)
        self.saver: Any = None
        self.held: asyncio.Event | None = None

        self.gate = Gate()
        self.gate.open()

        @tool
        async def look(city: str) -> str:
            """Look up the weather."""
            self.done["look"] += 1
            await self.gate.wait()
            return f"snow in {city}"

        @tool
        def count(word: str) -> int:
            """Count letters, in a thread."""
            self.done["count"] += 1
            return len(word)

        self.look, self.count = look, count

    def agent(self) -> Any:
        helper = create_agent(self.model, [self.look], name="Helper")

        @tool
        async def ask_helper(question: str) -> str:
            """Ask the helper."""
            self.done["ask_helper"] += 1
            state = await helper.ainvoke({"messages": [HumanMessage(question)]})
            return state["messages"][-1].text

        return create_agent(self.model, [self.look, self.count, ask_helper], checkpointer=self.saver)

    def graph(self) -> Any:
        model, done = self.model, self.done

        class Plan(BaseModel):
            cities: list[str]

        class State(MessagesState):
            cities: list[str]
            reports: Annotated[list[str], operator.add]

        async def plan(state: State) -> dict[str, Any]:
            done["plan"] += 1
            get_stream_writer()({"type": "planning"})
            planned: Any = await model.with_structured_output(Plan, method="function_calling").ainvoke("plan")
            return {"cities": planned.cities}

        async def visit(state: dict[str, Any]) -> dict[str, Any]:
            city = state["city"]
            weather = await self.look.ainvoke({"city": city})
            first, second = await asyncio.gather(model.ainvoke(f"food {city}"), model.ainvoke(f"art {city}"))
            return {"reports": [f"{weather}, {first.text}, {second.text}"]}

        def note(state: State) -> dict[str, Any]:
            done["note"] += 1
            return {"messages": [AIMessage("I have been there. ")]}

        def sync_reply(state: MessagesState) -> dict[str, Any]:
            return {"messages": [model.invoke([*state["messages"], HumanMessage("sum up")])]}

        inner = StateGraph(MessagesState).add_sequence([sync_reply]).add_edge(START, "sync_reply").compile()
        graph: Any = StateGraph(State)
        graph.add_node(plan).add_node(visit).add_node(note).add_node("inner", inner)
        graph.add_edge(START, "plan")
        graph.add_conditional_edges("plan", lambda state: [Send("visit", {"city": city}) for city in state["cities"]])
        graph.add_edge("visit", "note").add_edge("note", "inner").add_edge("inner", END)
        return graph.compile()

    def asking(self) -> Any:
        """A graph that asks a person twice in a subgraph, while another of its nodes works and ends."""
        model, done = self.model, self.done

        async def ask(state: MessagesState) -> dict[str, Any]:
            first = interrupt({"action": "ask", "text": "May I?"})
            weather = await self.look.ainvoke({"city": "Rome"})
            second = interrupt({"action": "ask", "text": "Really?"})
            done["ask"] += 1
            return {"messages": [AIMessage(f"{first} {second} {weather}. ")]}

        async def work(state: MessagesState) -> dict[str, Any]:
            done["work"] += 1
            await self.look.ainvoke({"city": "Oslo"})
            await model.ainvoke("work")
            return {}

        async def reply(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke([*state["messages"], HumanMessage("sum up")])]}

        inner = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()
        graph: Any = StateGraph(MessagesState)
        graph.add_node("inner", inner).add_node(work).add_node(reply, defer=True)
        graph.add_edge(START, "inner").add_edge(START, "work").add_edge("inner", "reply").add_edge("work", "reply")
        return graph.compile(checkpointer=self.saver)

    def failing(self) -> Any:
        """A graph with a model and a tool that fail, and are handled, and with models that are streamed in nodes."""
        model, done = self.model, self.done
        broken = model.model_copy(update={"model_name": "broken"})

        @tool
        def refuse(word: str) -> str:
            """Refuse."""
            done["refuse"] += 1
            raise LookupError(word)

        async def retry(state: MessagesState) -> dict[str, Any]:
            await broken.with_fallbacks([model]).ainvoke("again")
            return {"messages": [await model.bind_tools([refuse]).ainvoke("fail")]}

        async def stream(state: MessagesState) -> dict[str, Any]:
            result = state["messages"][-1].content
            chunks = [chunk async for chunk in model.astream(f"read {result}")]
            return {"messages": [AIMessage("".join(chunk.text for chunk in chunks) + ". ")]}

        def stream_in_thread(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage("".join(chunk.text for chunk in model.stream("last")))]}

        graph: Any = StateGraph(MessagesState)
        graph.add_sequence([retry, ("tools", ToolNode([refuse], handle_tool_errors=True)), stream, stream_in_thread])
        return graph.add_edge(START, "retry").compile()

    def function(self) -> Any:
        """A graph that is a function, with tasks."""
        model, done = self.model, self.done

        @task
        async def fetch(city: str) -> str:
            done["fetch"] += 1
            await self.look.ainvoke({"city": city})
            return (await model.ainvoke(f"food {city}")).text

        @entrypoint()
        async def answer(state: dict[str, Any]) -> dict[str, Any]:
            found = [await fetch(city) for city in ("Oslo", "Rome")]
            return {"messages": [await model.ainvoke(" ".join(found))]}

        return answer

    def runnable(self) -> Any:
        prompt = ChatPromptTemplate.from_messages([("user", "{text}")])
        chain = prompt | self.model | StrOutputParser()
        return (lambda turn: {"text": "sum up"}), {"text": chain} | prompt | self.model | StrOutputParser()

    def reply(self, request: Request) -> Any:
        """Answer like a model whose answer depends on the conversation alone."""
        if self.held is not None:
            return says("Held", self.held)
        messages = request.body["messages"]
        text, results = messages[-1]["content"], sum(message["role"] == "tool" for message in messages)
        if any(call["function"]["name"] == "Plan" for call in request.body.get("tools", [])):
            return calls(("Plan", {"cities": ["Oslo", "Rome"]}), ids=["p1"])
        if text == "Go":
            wanted = [("look", {"city": "Oslo"}), ("count", {"word": "tea"}), ("ask_helper", {"question": "Well?"})]
            return calls(*wanted, text="One moment. ", ids=["a1", "a2", "a3"])
        if text == "fail":
            return calls(("refuse", {"word": "tea"}), ids=["r1"])
        if text == "Well?":
            return calls(("look", {"city": "Rome"}), text="Let me see. ", ids=["h1"])
        if request.body["model"] == "broken":
            return fails(500)
        return says(f"{text}:{results}")


@pytest.fixture
async def office(model_server: ScriptedModel) -> AsyncIterator[Office]:
    office = Office(model_server)
    model_server.plan(*[office.reply] * 5000)
    yield office
    await office.client.aclose()
    if office.saver is not None:
        await office.saver.conn.close()  # Its thread would keep the process alive.


TOOLS = ["look", "count", "ask_helper", "refuse"]


def agent_of(office: Office, kind: str) -> LangGraphAgent:
    if kind == "runnable":
        to_input, runnable = office.runnable()
        return LangGraphAgent(runnable, to_input=to_input, idempotent=TOOLS)
    return LangGraphAgent(getattr(office, kind)(), idempotent=TOOLS)


def steps(outcome: Outcome) -> Any:
    # Not the ids, since LangGraph's ids of interrupts are others in each run.
    return sorted((step.name, step.state, str(step.args), str(step.result)) for step in outcome.state.steps)


async def thread(office: Office, outcome: Outcome, kind: str) -> list[tuple[str, Any]]:
    """Return the conversation in the application's checkpointer."""
    if office.saver is None:
        return []
    state = await getattr(office, kind)().aget_state({"configurable": {"thread_id": outcome.session_id}})
    assert not state.tasks
    return [(message.type, message.content) for message in state.values["messages"]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        ("agent", True),
        ("graph", False),
        ("asking", False),
        ("asking", True),
        ("failing", False),
        ("function", False),
        ("runnable", False),
    ],
)
async def test_turn_that_dies_after_any_event_repeats_nothing_that_has_finished(
    office: Office, tmp_path: Path, kind: str, saved: bool
) -> None:
    if saved:
        office.saver = AsyncSqliteSaver(aiosqlite.connect(tmp_path / "threads.db"))
    whole = await run_turn(agent_of(office, kind), office.server, office.done)
    conversation = await thread(office, whole, kind)
    requests, done = len(office.server.requests), dict(office.done)
    lifetime = 0
    while True:
        office.server.requests.clear()
        office.done.clear()
        outcome = await run_turn(agent_of(office, kind), office.server, office.done, lifetime)
        if (death := outcome.death) is None:
            break
        assert outcome.answer == whole.answer, lifetime
        assert (steps(outcome), outcome.events) == (steps(whole), whole.events), lifetime
        assert await thread(office, outcome, kind) == conversation, lifetime
        models = [entry for entry in death.finished("model") if entry.names[1] != "text"]
        assert len(office.server.requests) - death.requests == requests - len(models), lifetime
        finished = Counter(entry.names[0] for entry in death.finished("tool") + death.finished("step"))
        repeated = {name: office.done[name] - death.done.get(name, 0) for name in finished}
        assert repeated == {name: done.get(name, 0) - finished[name] * (name in done) for name in finished}, lifetime
        lifetime += 1 if runs_all() else 5
    assert lifetime > 5


def single(office: Office) -> Any:
    """A graph that calls one tool and then a model."""

    async def work(state: MessagesState) -> dict[str, Any]:
        call: Any = {"type": "tool_call", "name": "look", "args": {"city": "Oslo"}, "id": "a1"}
        weather = await office.look.ainvoke(call)
        return {"messages": [await office.model.ainvoke(weather.content)]}

    return StateGraph(MessagesState).add_node(work).add_edge(START, "work").compile()


async def lose_in_tool(store: Store, office: Office, agent: LangGraphAgent) -> TurnRecord:
    office.gate = Gate()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Begin")
        await office.gate.reached()
        await lose_worker(desk)
    office.gate.open()
    return turn


@pytest.mark.parametrize("approved", [True, False, None])
async def test_running_tool_is_repeated_if_idempotent_and_otherwise_asked_about(
    office: Office, store: Store, approved: bool | None
) -> None:
    agent = LangGraphAgent(single(office), idempotent=["look"] if approved is None else [])
    turn = await lose_in_tool(store, office, agent)
    async with open_actor_desk(store, agent) as desk:
        if approved is not None:
            await wait_until_suspended(desk, turn)
            await desk.runner.decide(turn.id, "a1", approved=approved)
        answer = await completed_answer(desk, turn)
        results = [event for event in await desk.events(turn) if isinstance(event, ToolResultEvent)]
    assert office.done["look"] == (1 if approved is False else 2)
    assert answer == "snow in Oslo:0" if approved is not False else answer.startswith("Outcome unknown")
    assert [result.success for result in results] == [approved is not False]


async def test_turn_that_does_not_continue_is_closed(office: Office, store: Store) -> None:
    agent = LangGraphAgent(single(office), on_crash="close")
    turn = await lose_in_tool(store, office, agent)
    async with open_actor_desk(store, agent) as desk:
        assert (await desk.end(turn)).outcome == "interrupted"


async def test_draining_worker_hands_the_turn_over_before_the_next_call(office: Office, store: Store) -> None:
    office.gate = Gate()
    agent = LangGraphAgent(single(office))
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Begin")
        await office.gate.reached()
        draining = await start_drain(desk)
        office.gate.open()
        await draining
    assert not office.server.requests
    async with open_actor_desk(store, agent) as desk:
        assert await completed_answer(desk, turn) == "snow in Oslo:0"
        assert not any(isinstance(event, RestartEvent) for event in await desk.events(turn))
    assert (office.done["look"], len(office.server.requests)) == (1, 1)


async def test_sync_call_in_an_event_loop_of_a_thread_is_recorded(office: Office, store: Store) -> None:
    def work(state: MessagesState) -> dict[str, Any]:
        async def ask() -> AIMessage:
            return office.model.invoke("tea")

        return {"messages": [asyncio.run(ask())]}

    graph = StateGraph(MessagesState).add_node(work).add_edge(START, "work").compile()
    async with open_actor_desk(store, LangGraphAgent(graph)) as desk:
        turn = await desk.start("Begin")
        assert await completed_answer(desk, turn) == "tea:0"


async def test_graph_that_skips_a_finished_call_is_stopped(office: Office, store: Store) -> None:
    async def other(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("Other.")]}

    changed = StateGraph(MessagesState).add_node("work", other).add_edge(START, "work").compile()
    office.held = asyncio.Event()
    async with open_actor_desk(store, LangGraphAgent(single(office))) as desk:
        turn = await desk.start("Begin")
        await wait_for_events(desk, turn, TokenEvent("Held"))
        await lose_worker(desk)
    async with open_actor_desk(store, LangGraphAgent(changed)) as desk:
        assert (await desk.end(turn)).reason == "diverged"


def test_agent_resumes_unless_it_says_otherwise(office: Office) -> None:
    agent = LangGraphAgent(single(office))
    assert resumes(agent)
    closing = LangGraphAgent(single(office), on_crash="close")
    assert not resumes(closing)


def test_graph_whose_input_the_application_makes_does_not_go_on_after_a_change(office: Office) -> None:
    assert LangGraphAgent(single(office), on_divergence="continue").on_divergence == "continue"
    agent = LangGraphAgent(single(office), on_divergence="continue", to_input=lambda turn: {"messages": []})
    assert agent.on_divergence == "end"


def test_methods_of_langchain_are_those_that_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after an upgrade, look at `runner.py`: LangChain has changed what it stands on."""
    install_hooks()

    def changed(self: Any, messages: Any) -> None: ...

    monkeypatch.setattr(BaseChatModel, "_agenerate_with_cache", changed)
    with pytest.raises(RuntimeError, match="is not supported"):
        install_hooks()


@pytest.mark.parametrize("surrogate", ["", "\ud800"], ids=["plain", "with a lone surrogate"])
def test_cve_2025_64439_recorded_result_that_describes_a_constructor_stays_data(surrogate: str, tmp_path: Path) -> None:
    """LangGraph's serializer once took this path for text that msgpack cannot represent, and called what it names."""
    target = tmp_path / "made"
    hostile = {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [str(target)], "kwargs": {}}
    # A tuple is no plain JSON, so it goes through the serializer.
    for value in (hostile, (hostile, surrogate), [hostile, HumanMessage(f"hello{surrogate}")]):
        recorded = json.loads(json.dumps(dump_result(value), default=str))
        restored = load_result(recorded)
        assert not target.exists()
        assert str(target) in str(restored)
