from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

from turnwire import Turnwire
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.core.log.events import StatusEvent


async def look(state: MessagesState) -> None:
    write = get_stream_writer()
    write(StatusEvent("looking out of the window"))
    write({"type": "clouds", "count": 2})


async def reply(state: MessagesState) -> dict[str, Any]:
    # No model, so that this runs without a key. Here you would call yours.
    asked = len([message for message in state["messages"] if message.type == "human"])
    return {"messages": [AIMessage(f"Two clouds. You have asked {asked} time(s).")]}


graph = StateGraph(MessagesState)
graph.add_sequence([look, reply])
graph.add_edge(START, "look")
built = graph.compile(checkpointer=InMemorySaver())

app = Turnwire(agent=LangGraphAgent(built, config={"recursion_limit": 20}), data="graph-data").asgi()
