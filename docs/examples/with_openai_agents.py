from agents import Agent, function_tool

from turnwire import Turnwire


@function_tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


agent = Agent(name="Weather", model="gpt-5-mini", instructions="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, data="agents-data").asgi()
