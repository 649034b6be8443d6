"""Turnwire runs agents' turns on the server, logs every event durably, and streams the log to any client.

from turnwire import Turn, Turnwire

async def answer(turn: Turn):
    yield f"You said: {turn.message}"

app = Turnwire(agent=answer).asgi()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwire.agents.chat_completions import ChatCompletionsAgent
    from turnwire.app import Turnwire
    from turnwire.core.approvals import WaitForApproval
    from turnwire.core.contracts import Agent, Store, Wire
    from turnwire.core.emit import emit
    from turnwire.core.errors import AgentError, ToolError, TurnwireError
    from turnwire.core.journal import journaled
    from turnwire.core.turns import Message, Turn, TurnRecord, TurnState
    from turnwire.settings import Settings
    from turnwire.tools import tool

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentError",
    "ChatCompletionsAgent",
    "Message",
    "Settings",
    "Store",
    "ToolError",
    "Turn",
    "TurnRecord",
    "TurnState",
    "Turnwire",
    "TurnwireError",
    "WaitForApproval",
    "Wire",
    "emit",
    "journaled",
    "tool",
]

# Imported when first asked for: a tool that only wants `emit`, or a command line, need not load a web framework.
_HOMES = {
    "Agent": "core.contracts",
    "AgentError": "core.errors",
    "ChatCompletionsAgent": "agents.chat_completions",
    "Message": "core.turns",
    "Settings": "settings",
    "Store": "core.contracts",
    "ToolError": "core.errors",
    "Turn": "core.turns",
    "TurnRecord": "core.turns",
    "TurnState": "core.turns",
    "Turnwire": "app",
    "TurnwireError": "core.errors",
    "WaitForApproval": "core.approvals",
    "Wire": "core.contracts",
    "emit": "core.emit",
    "journaled": "core.journal",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnwire' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.{home}"), name)
    return value
