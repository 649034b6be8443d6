"""Tools for models: `@tool` declares a Python function as one, `run_tool` runs it, `McpServer` brings remote ones."""

from turnwire.tools.declaration import Tool, Toolset, open_toolsets, read_arguments, tool
from turnwire.tools.fetch import FetchLimits, fetch_tool, fetch_url
from turnwire.tools.invocation import ToolOutcome, progress, run_tool, running_call
from turnwire.tools.mcp import McpServer

__all__ = [
    "FetchLimits",
    "McpServer",
    "Tool",
    "ToolOutcome",
    "Toolset",
    "fetch_tool",
    "fetch_url",
    "open_toolsets",
    "progress",
    "read_arguments",
    "run_tool",
    "running_call",
    "tool",
]
