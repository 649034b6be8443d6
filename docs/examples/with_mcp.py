import sys
from pathlib import Path

from turnwire import ChatCompletionsAgent, Turnwire
from turnwire.tools import McpServer

script = Path(__file__).parent / "servers" / "weather.py"
weather = McpServer("weather", command=sys.executable, args=[str(script)], timeout=10)
agent = ChatCompletionsAgent("gpt-5-mini", instructions="Answer in one sentence.", tools=[weather])
app = Turnwire(agent=agent, data="mcp-data").asgi()
