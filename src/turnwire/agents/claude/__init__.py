"""Adapter for the Claude Agent SDK.

    from claude_agent_sdk import ClaudeAgentOptions

    agent = ClaudeAgent(ClaudeAgentOptions(model="claude-sonnet-5", mcp_servers={"tools": claude_tools([search])}))

Each turn is a process of Claude Code, which runs the model and the tools. `runner` starts it, with a folder of its own
and a transcript of the conversation; `events` turns its messages into events, and holds each tool call until the reply
that makes it is whole, and answers the SDK's permission requests with decisions. `continuation` continues a turn from
its journal after a wait or a crash.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.claude.agent import ClaudeAgent
    from turnwire.agents.claude.tools import claude_tools

__all__ = ["ClaudeAgent", "claude_tools"]

__getattr__ = lazy_exports(__name__, {"ClaudeAgent": "agent", "claude_tools": "tools"})
