from google.adk.agents import LlmAgent

from turnwire import Turnwire, tool
from turnwire.agents.google_adk import adk_tools


@tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


@tool(needs_approval=True)
async def send_letter(to: str, text: str) -> str:
    """Sends a letter."""
    return f"Sent to {to}"


agent = LlmAgent(name="post_office", model="gemini-3-flash", tools=adk_tools([weather, send_letter]))
app = Turnwire(agent=agent, data="adk-post-data").asgi()
