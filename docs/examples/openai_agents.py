from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from turnwire import Turnwire
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.tools import progress


@function_tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"looking out of the window in {city}")
    return f"Sunny in {city}"


# A stand-in that knows two lines, so that this runs without a key. Leave `model` out, or give yours.
model = ScriptedModel(
    [
        [function_call("weather", {"city": "Oslo"}, call_id="call_1")],
        [assistant_message("It is sunny in Oslo.")],
    ]
)
helper = Agent(name="Helper", instructions="Be kind.", model=model, tools=[weather])

app = Turnwire(agent=OpenAIAgentsAgent(helper, max_turns=8), data="agents-data").asgi()
