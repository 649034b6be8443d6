from pydantic_ai import Agent

from turnwire import Turnwire

agent = Agent("openai:gpt-5-mini", instructions="Answer in one sentence.")


@agent.tool_plain
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


app = Turnwire(agent=agent, data="pydantic-ai-data").asgi()
