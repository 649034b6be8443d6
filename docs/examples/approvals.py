from turnwire import ChatCompletionsAgent, Turnwire, tool


@tool(needs_approval=lambda args: args.get("days", 1) > 3)
async def weather(city: str, days: int = 1) -> str:
    """The forecast for a city. More than three days cost money."""
    return f"Sunny in {city} for {days} days"


agent = ChatCompletionsAgent("gpt-5-mini", instructions="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, store="memory").asgi()
