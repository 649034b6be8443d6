from pydantic_ai import Agent

from turnwire import Turnwire, tool
from turnwire.agents.pydantic_ai import pydantic_tools


@tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


@tool(needs_approval=True)
async def send_letter(to: str, text: str) -> str:
    """Sends a letter."""
    return f"Sent to {to}"


agent = Agent("openai:gpt-5-mini", tools=pydantic_tools([weather, send_letter]))
app = Turnwire(agent=agent, data="pydantic-post-data").asgi()
