"""An MCP server with one tool, for the guide on MCP: what others write, in any language."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
async def weather(city: str) -> str:
    """What the weather is like in a city."""
    return f"Sunny in {city}"


if __name__ == "__main__":
    server.run()
