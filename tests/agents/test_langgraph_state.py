"""Fields of a graph's state that clients see, and that they set."""

from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from tests.contracts.test_agent import outcome, text
from tests.core.desk import open_actor_desk
from tests.core.test_shared_state import changes
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.core.log.events import Event
from turnwire.stores.memory import MemoryStore


class Planned(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    plan: list[str]
    title: str
    secret: str


def planner() -> Any:
    def plan(state: Planned) -> dict[str, Any]:
        return {"plan": [*state.get("plan", []), "look", "a second step with a long name"], "secret": "hidden"}

    def work(state: Planned) -> dict[str, Any]:
        return {"title": "Done", "messages": [AIMessage(f"{len(state.get('plan', []))} steps.")]}

    graph = StateGraph(Planned)
    graph.add_node("plan", plan)
    graph.add_node("work", work)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "work")
    graph.add_edge("work", END)
    return graph.compile()


async def test_named_fields_are_shared_as_they_change_and_others_are_not() -> None:
    agent = LangGraphAgent(planner(), shared_state=("plan", "title"))
    async with open_actor_desk(MemoryStore(), agent) as desk:
        turn = await desk.start("Plan it.")
        events = await desk.events(turn)
        state = await desk.store.turn_state(turn.id)
    assert outcome(events) == ("completed", None)
    steps = ["look", "a second step with a long name"]
    assert changes(events) == [
        {"snapshot": {"plan": steps}},
        {"delta": [{"op": "add", "path": "/title", "value": "Done"}]},
    ]
    assert state is not None
    assert state.shared_state == {"plan": steps, "title": "Done"}
    assert "hidden" not in str(events)


async def test_state_of_the_client_begins_the_graph_s_own() -> None:
    agent = LangGraphAgent(planner(), shared_state=("plan", "title"))
    async with open_actor_desk(MemoryStore(), agent) as desk:
        sent = {"plan": ["begin"], "secret": "of the client"}
        events = await desk.events(await desk.start("Plan it.", options={"state": sent}))
    assert text(events) == "3 steps."
    assert "of the client" not in str(events)


async def test_graph_that_shares_nothing_writes_no_state() -> None:
    async with open_actor_desk(MemoryStore(), planner()) as desk:
        events: list[Event] = await desk.events(await desk.start("Plan it."))
    assert changes(events) == []
