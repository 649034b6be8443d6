from turnwire import ChatCompletionsAgent, Turnwire, ask, tool

PLAN = {"type": "string", "enum": ["basic", "plus"]}


@tool
async def weather(city: str, days: int = 1) -> str:
    """The forecast for a city. More than three days need a plan."""
    if days <= 3:
        return f"Sunny in {city} for {days} days"
    plan = await ask(f"Which plan pays for {days} days?", PLAN)
    return f"Sunny in {city} for {days} days, paid by the plan {plan}"


agent = ChatCompletionsAgent("gpt-5-mini", instructions="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, data="asking-data").asgi()
