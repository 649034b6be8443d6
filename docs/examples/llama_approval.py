from llama_index.core.agent.workflow import FunctionAgent

from turnwire import Turnwire, tool
from turnwire.agents.llama_index import OpenAICompatibleLLM, llama_tools


@tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


@tool(needs_approval=True)
async def send_letter(to: str, text: str) -> str:
    """Sends a letter."""
    return f"Sent to {to}"


agent = FunctionAgent(llm=OpenAICompatibleLLM("gpt-5-mini"), tools=llama_tools([weather, send_letter]))
app = Turnwire(agent=agent, data="llama-post-data").asgi()
