from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from turnwire import Turnwire


async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


graph = create_agent(ChatOpenAI(model="gpt-5-mini", stream_usage=True), [weather])
app = Turnwire(agent=graph, data="langgraph-data").asgi()
