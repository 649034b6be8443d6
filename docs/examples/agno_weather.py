from agno.agent import Agent
from agno.models.openai import OpenAIChat

from turnwire import Turnwire
from turnwire.tools import progress


async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"looking out of the window in {city}", 0.5)
    return f"Sunny in {city}"


agent = Agent(name="Weather", model=OpenAIChat("gpt-5-mini"), instructions="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, data="agno-data").asgi()
