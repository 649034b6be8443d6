"""Plain Python functions as tools: `@tool` describes one to a model, `run_tool` runs it within limits."""

from turnwire.tools.arguments import read_arguments
from turnwire.tools.declaring import Tool, tool
from turnwire.tools.fetching import FetchLimits, fetch_tool, fetch_url
from turnwire.tools.running import ToolOutcome, progress, run_tool, running_call

__all__ = [
    "FetchLimits",
    "Tool",
    "ToolOutcome",
    "fetch_tool",
    "fetch_url",
    "progress",
    "read_arguments",
    "run_tool",
    "running_call",
    "tool",
]
