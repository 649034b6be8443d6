from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from turnwire import Turn, Turnwire, emit
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.core.events import ToolProgressEvent


@function_tool
async def weather(context: ToolContext[Turn], city: str) -> str:
    """What the weather is like in a city."""
    emit(ToolProgressEvent(context.tool_call_id, f"looking out of the window in {city}"))
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
