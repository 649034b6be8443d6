"""Plain Python functions as tools: `@tool` describes one to a model, `run_tool` runs it within limits.

`McpServer` brings those of an MCP server.
"""

from turnwire.tools.arguments import read_arguments
from turnwire.tools.declaring import Tool, tool
from turnwire.tools.fetching import FetchLimits, fetch_tool, fetch_url
from turnwire.tools.mcp import McpServer
from turnwire.tools.running import ToolOutcome, progress, run_tool, running_call
from turnwire.tools.toolset import Toolset, open_toolsets

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
