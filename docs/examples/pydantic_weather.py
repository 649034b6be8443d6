from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.test import TestModel

from turnwire import Turnwire
from turnwire.agents.pydantic_ai import PydanticAIAgent
from turnwire.tools import progress

# A stand-in that calls every tool once, so that this runs without a key. Give yours: "openai-chat:gpt-5.2".
agent = Agent(TestModel(custom_output_text="It is sunny in Oslo."), instructions="Be kind.")


@agent.tool_plain
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"looking out of the window in {city}", 0.5)
    return f"Sunny in {city}"


app = Turnwire(agent=PydanticAIAgent(agent, usage_limits=UsageLimits(request_limit=8)), data="pydantic-data").asgi()
