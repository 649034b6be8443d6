"""MCP servers as tools. The SDK, an optional extra, is loaded when a server is named and not before."""

from turnwire.tools.mcp.server import McpServer

__all__ = ["McpServer"]
