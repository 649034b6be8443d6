"""Turnwire: agents in, one durable log per turn, every wire out.

from turnwire import Turn, Turnwire

async def answer(turn: Turn):
    yield f"You said: {turn.message}"

app = Turnwire(agent=answer).asgi()
"""

from turnwire.core.contracts import Agent, Store, Wire
from turnwire.core.emit import emit
from turnwire.core.errors import AgentError, TurnwireError
from turnwire.core.turns import Message, Turn, TurnRecord, TurnState
from turnwire.server import Turnwire
from turnwire.settings import Settings

__all__ = [
    "Agent",
    "AgentError",
    "Message",
    "Settings",
    "Store",
    "Turn",
    "TurnRecord",
    "TurnState",
    "Turnwire",
    "TurnwireError",
    "Wire",
    "emit",
]
