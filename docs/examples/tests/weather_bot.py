from turnwire import ChatCompletionsAgent, tool

WEATHER = {"Oslo": "snow", "Rome": "sunshine"}


@tool
def weather(city: str) -> str:
    """Return the weather in a city."""
    return WEATHER[city]


def make_agent() -> ChatCompletionsAgent:
    return ChatCompletionsAgent("gpt-5-mini", instructions="You report the weather.", tools=[weather])
