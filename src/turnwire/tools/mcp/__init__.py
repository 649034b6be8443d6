"""MCP servers as toolsets. The SDK is an optional extra, imported when a server is configured."""

from turnwire.tools.mcp.server import McpServer

__all__ = ["McpServer"]
