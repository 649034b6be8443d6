"""Turns of unmodified LangGraph graphs and LangChain runnables that lose their worker and continue on another one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict
import operator

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from pydantic import BaseModel

from tests.contracts.agent_cases.langgraph import _model
from tests.contracts.dying_store import Outcome, run_turn
from tests.scripted_model import Request, ScriptedModel, calls, model_server, says
from tests.scripted_wires import Answer
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.core.journal import JournalEntry

__all__ = ["model_server"]


class Office:
    """Graphs and their tools, which count their runs, and a model that answers by what it reads."""

    def __init__(self, server: ScriptedModel) -> None:
        self.server = server
        self.done: Counter[str] = Counter()
        self.client, self.model = _model(server.url, "chat", 30)

        @tool
        async def look(city: str) -> str:
            """Look up the weather."""
            self.done["look"] += 1
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

        return create_agent(self.model, [self.look, self.count, ask_helper])

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
            planned = await model.with_structured_output(Plan, method="function_calling").ainvoke("plan")
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

    def runnable(self) -> Any:
        prompt = ChatPromptTemplate.from_messages([("user", "{text}")])
        chain = prompt | self.model | StrOutputParser()
        return (lambda turn: {"text": "sum up"}), {"text": chain} | prompt | self.model | StrOutputParser()

    def reply(self, request: Request) -> Answer:
        """Answer like a model whose answer depends on the conversation alone."""
        messages = request.body["messages"]
        text, results = messages[-1]["content"], sum(message["role"] == "tool" for message in messages)
        if any(call["function"]["name"] == "Plan" for call in request.body.get("tools", [])):
            return calls(("Plan", {"cities": ["Oslo", "Rome"]}), ids=["p1"])
        if text == "Go":
            wanted = [("look", {"city": "Oslo"}), ("count", {"word": "tea"}), ("ask_helper", {"question": "Well?"})]
            return calls(*wanted, text="One moment. ", ids=["a1", "a2", "a3"])
        if text == "Well?":
            return calls(("look", {"city": "Rome"}), text="Let me see. ", ids=["h1"])
        return says(f"Answer to {text} with {results}.")


@pytest.fixture
async def office(model_server: ScriptedModel) -> AsyncIterator[Office]:
    office = Office(model_server)
    model_server.plan(*[office.reply] * 5000)
    yield office
    await office.client.aclose()


def agent_of(office: Office, kind: str) -> LangGraphAgent:
    tools = ["look", "count", "ask_helper"]
    if kind == "runnable":
        to_input, runnable = office.runnable()
        return LangGraphAgent(runnable, to_input=to_input, idempotent=tools)
    return LangGraphAgent(getattr(office, kind)(), idempotent=tools)


def tool_runs(entries: list[JournalEntry]) -> Counter[str]:
    return Counter(entry.names[0] for entry in entries)


def steps(outcome: Outcome) -> Any:
    return sorted((step.id, step.name, step.state, str(step.args), str(step.result)) for step in outcome.state.steps)


@pytest.mark.parametrize("kind", ["agent", "graph", "runnable"])
async def test_turn_that_dies_after_any_event_repeats_nothing_that_has_finished(office: Office, kind: str) -> None:
    whole = await run_turn(agent_of(office, kind), office.server, office.done)
    requests, done = len(office.server.requests), dict(office.done)
    lifetime = 0
    while True:
        office.server.requests.clear()
        office.done.clear()
        outcome = await run_turn(agent_of(office, kind), office.server, office.done, lifetime)
        if outcome.death is None:
            break
        models = [entry for entry in outcome.death.finished("model") if entry.names[1] != "text"]
        print(lifetime, len(outcome.death.entries), len(models), dict(office.done))
        assert outcome.answer == whole.answer, lifetime
        assert steps(outcome) == steps(whole), lifetime
        assert len(office.server.requests) - outcome.death.requests == requests - len(models), lifetime
        finished = tool_runs(outcome.death.finished("tool"))
        for name in finished:
            assert office.done[name] - outcome.death.done.get(name, 0) <= done[name] - finished[name], lifetime
        lifetime += 1
    assert lifetime > 10
