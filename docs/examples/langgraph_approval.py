from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from turnwire import Turnwire, tool
from turnwire.agents.langgraph import langchain_tools


@tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


@tool(needs_approval=True)
async def send_letter(to: str, text: str) -> str:
    """Sends a letter."""
    return f"Sent to {to}"


# In memory, so that this runs as it is. One that writes to a disk keeps its threads after a restart.
saver = InMemorySaver()
model = ChatOpenAI(model="gpt-5-mini", stream_usage=True)
graph = create_agent(model, langchain_tools([weather, send_letter]), checkpointer=saver)
app = Turnwire(agent=graph, data="graph-post-data").asgi()
