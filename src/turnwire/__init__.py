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
    from turnwire.core.emit import emit, emit_state
    from turnwire.core.errors import AgentError, QuestionDeclinedError, ToolError, TurnwireError
    from turnwire.core.events import (
        ApprovalRequestEvent,
        ApprovalResponseEvent,
        AttachedFile,
        CitationEvent,
        CustomEvent,
        DoneEvent,
        ErrorEvent,
        Event,
        HandoffEvent,
        Hit,
        MessageEvent,
        QuestionEvent,
        ReasoningEvent,
        ReplyEvent,
        ResponseEvent,
        RestartEvent,
        ReviewEvent,
        SearchEvent,
        SessionEvent,
        StatusEvent,
        TokenEvent,
        ToolCallEvent,
        ToolProgressEvent,
        ToolResultEvent,
        Usage,
        UsageEvent,
    )
    from turnwire.core.files import read_file
    from turnwire.core.inputs import take_inputs
    from turnwire.core.journal import journaled
    from turnwire.core.model_options import ModelOptions
    from turnwire.core.turns import Message, Turn, TurnRecord, TurnState
    from turnwire.core.waits import ask, call_client_tool
    from turnwire.settings import Settings
    from turnwire.tools import tool

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentError",
    "ApprovalRequestEvent",
    "ApprovalResponseEvent",
    "AttachedFile",
    "ChatCompletionsAgent",
    "CitationEvent",
    "CustomEvent",
    "DoneEvent",
    "ErrorEvent",
    "Event",
    "HandoffEvent",
    "Hit",
    "Message",
    "MessageEvent",
    "ModelOptions",
    "QuestionDeclinedError",
    "QuestionEvent",
    "ReasoningEvent",
    "ReplyEvent",
    "ResponseEvent",
    "RestartEvent",
    "ReviewEvent",
    "SearchEvent",
    "SessionEvent",
    "Settings",
    "StatusEvent",
    "Store",
    "TokenEvent",
    "ToolCallEvent",
    "ToolError",
    "ToolProgressEvent",
    "ToolResultEvent",
    "Turn",
    "TurnRecord",
    "TurnState",
    "Turnwire",
    "TurnwireError",
    "Usage",
    "UsageEvent",
    "WaitForApproval",
    "Wire",
    "ask",
    "call_client_tool",
    "emit",
    "emit_state",
    "journaled",
    "read_file",
    "take_inputs",
    "tool",
]

# Imported when first asked for: a tool that only wants `emit`, or a command line, need not load a web framework.
_HOMES = {
    "Agent": "core.contracts",
    "AgentError": "core.errors",
    "ApprovalRequestEvent": "core.events",
    "ApprovalResponseEvent": "core.events",
    "AttachedFile": "core.events",
    "ChatCompletionsAgent": "agents.chat_completions",
    "CitationEvent": "core.events",
    "CustomEvent": "core.events",
    "DoneEvent": "core.events",
    "ErrorEvent": "core.events",
    "Event": "core.events",
    "HandoffEvent": "core.events",
    "Hit": "core.events",
    "Message": "core.turns",
    "ModelOptions": "core.model_options",
    "MessageEvent": "core.events",
    "QuestionDeclinedError": "core.errors",
    "QuestionEvent": "core.events",
    "ReasoningEvent": "core.events",
    "ReplyEvent": "core.events",
    "ResponseEvent": "core.events",
    "RestartEvent": "core.events",
    "ReviewEvent": "core.events",
    "SearchEvent": "core.events",
    "SessionEvent": "core.events",
    "Settings": "settings",
    "StatusEvent": "core.events",
    "Store": "core.contracts",
    "TokenEvent": "core.events",
    "ToolCallEvent": "core.events",
    "ToolError": "core.errors",
    "ToolProgressEvent": "core.events",
    "ToolResultEvent": "core.events",
    "Turn": "core.turns",
    "TurnRecord": "core.turns",
    "TurnState": "core.turns",
    "Turnwire": "app",
    "TurnwireError": "core.errors",
    "Usage": "core.events",
    "UsageEvent": "core.events",
    "WaitForApproval": "core.approvals",
    "Wire": "core.contracts",
    "ask": "core.waits",
    "call_client_tool": "core.waits",
    "emit": "core.emit",
    "emit_state": "core.emit",
    "journaled": "core.journal",
    "read_file": "core.files",
    "take_inputs": "core.inputs",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnwire' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.{home}"), name)
    return value
