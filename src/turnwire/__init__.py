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
    from turnwire.core.contracts.agents import Agent
    from turnwire.core.contracts.stores import Store
    from turnwire.core.contracts.wires import Wire
    from turnwire.core.errors import AgentError, QuestionDeclinedError, ToolError, TurnwireError
    from turnwire.core.journal.turn_journal import journaled
    from turnwire.core.journal.waits import approval, ask, call_client_tool
    from turnwire.core.log.emit import emit, emit_state
    from turnwire.core.log.events import (
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
    from turnwire.core.log.files import read_file
    from turnwire.core.log.model_options import ModelOptions
    from turnwire.core.log.turns import Message, Turn, TurnRecord, TurnState
    from turnwire.core.run.inputs import take_inputs
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
    "Wire",
    "approval",
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
    "Agent": "core.contracts.agents",
    "AgentError": "core.errors",
    "ApprovalRequestEvent": "core.log.events",
    "ApprovalResponseEvent": "core.log.events",
    "AttachedFile": "core.log.events",
    "ChatCompletionsAgent": "agents.chat_completions",
    "CitationEvent": "core.log.events",
    "CustomEvent": "core.log.events",
    "DoneEvent": "core.log.events",
    "ErrorEvent": "core.log.events",
    "Event": "core.log.events",
    "HandoffEvent": "core.log.events",
    "Hit": "core.log.events",
    "Message": "core.log.turns",
    "ModelOptions": "core.log.model_options",
    "MessageEvent": "core.log.events",
    "QuestionDeclinedError": "core.errors",
    "QuestionEvent": "core.log.events",
    "ReasoningEvent": "core.log.events",
    "ReplyEvent": "core.log.events",
    "ResponseEvent": "core.log.events",
    "RestartEvent": "core.log.events",
    "ReviewEvent": "core.log.events",
    "SearchEvent": "core.log.events",
    "SessionEvent": "core.log.events",
    "Settings": "settings",
    "StatusEvent": "core.log.events",
    "Store": "core.contracts.stores",
    "TokenEvent": "core.log.events",
    "ToolCallEvent": "core.log.events",
    "ToolError": "core.errors",
    "ToolProgressEvent": "core.log.events",
    "ToolResultEvent": "core.log.events",
    "Turn": "core.log.turns",
    "TurnRecord": "core.log.turns",
    "TurnState": "core.log.turns",
    "Turnwire": "app",
    "TurnwireError": "core.errors",
    "Usage": "core.log.events",
    "UsageEvent": "core.log.events",
    "approval": "core.journal.waits",
    "Wire": "core.contracts.wires",
    "ask": "core.journal.waits",
    "call_client_tool": "core.journal.waits",
    "emit": "core.log.emit",
    "emit_state": "core.log.emit",
    "journaled": "core.journal.turn_journal",
    "read_file": "core.log.files",
    "take_inputs": "core.run.inputs",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnwire' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.{home}"), name)
    return value
