from llama_index.core.agent.workflow import FunctionAgent

from turnwire import Turnwire
from turnwire.agents.llama_index import LlamaIndexAgent, OpenAICompatibleLLM
from turnwire.tools import progress


async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"looking out of the window in {city}", 0.5)
    return f"Sunny in {city}"


agent = FunctionAgent(llm=OpenAICompatibleLLM("gpt-5-mini"), tools=[weather], system_prompt="Be kind.")
app = Turnwire(agent=LlamaIndexAgent(agent, max_steps=8), data="llama-data").asgi()
