from claude_agent_sdk import ClaudeAgentOptions

from turnwire import Turnwire, tool
from turnwire.agents.claude import claude_tools
from turnwire.tools import progress


@tool
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    progress(f"looking out of the window in {city}", 0.5)
    return f"Sunny in {city}"


@tool(needs_approval=True)
async def send_letter(to: str, text: str) -> str:
    """Sends a letter."""
    return f"Sent to {to}"


options = ClaudeAgentOptions(
    model="claude-sonnet-5",
    system_prompt="Answer in one sentence.",
    tools=[],
    mcp_servers={"tools": claude_tools([weather, send_letter])},
)
app = Turnwire(agent=options, data="claude-data").asgi()
