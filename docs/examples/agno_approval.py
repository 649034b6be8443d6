from agno.agent import Agent
from agno.models.openai import OpenAIChat

from turnwire import Turnwire, tool
from turnwire.agents.agno import agno_tools


@tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


@tool(needs_approval=True)
async def send_letter(to: str, text: str) -> str:
    """Sends a letter."""
    return f"Sent to {to}"


agent = Agent(name="Post", model=OpenAIChat("gpt-5-mini"), tools=agno_tools([weather, send_letter]))
app = Turnwire(agent=agent, data="agno-post-data").asgi()
