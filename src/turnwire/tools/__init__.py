"""Plain Python functions as tools: `@tool` describes one to a model, `run_tool` runs it within limits."""

from turnwire.tools.arguments import read_arguments
from turnwire.tools.declaring import Tool, tool
from turnwire.tools.running import ToolOutcome, progress, run_tool, running_call

__all__ = ["Tool", "ToolOutcome", "progress", "read_arguments", "run_tool", "running_call", "tool"]
