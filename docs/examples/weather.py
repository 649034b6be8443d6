from turnwire import ChatCompletionsAgent, ToolError, Turnwire, tool
from turnwire.tools import progress

WEATHER = {"Oslo": "snow", "Rome": "sunshine"}


@tool(timeout=10)
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"asking about {city}", fraction=0.5)
    if city not in WEATHER:
        raise ToolError(f"there is no city {city!r}; there are {', '.join(WEATHER)}")
    return WEATHER[city]


agent = ChatCompletionsAgent("gpt-5-mini", instructions="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, data="weather-data").asgi()
