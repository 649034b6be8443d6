from google.adk.agents import LlmAgent

from turnwire import Turnwire
from turnwire.tools import progress


async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"looking out of the window in {city}", 0.5)
    return f"Sunny in {city}"


agent = LlmAgent(name="weather_desk", model="gemini-3-flash", instruction="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, data="adk-data").asgi()
