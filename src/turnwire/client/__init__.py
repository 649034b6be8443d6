"""A client of a running server, async and not: it starts turns and reads each event once, over any lost connection.

from turnwire.client import Client

with Client("http://127.0.0.1:8420") as client:
    print(client.start("Hello").result().text)
"""

from turnwire.client.async_client import AsyncClient, AsyncTurnHandle
from turnwire.client.errors import ClientError, RefusedError, ServerUnreachableError
from turnwire.client.sync_client import Client, TurnHandle
from turnwire.client.values import (
    ConnectionLost,
    ConnectionRestored,
    MessageOptions,
    ReceivedEvent,
    ReconnectLimits,
    ServerAddress,
    SessionPage,
    SessionSummary,
    SessionTurns,
    TurnSnapshot,
    TurnSummary,
    TurnUpdate,
    attachment,
)
from turnwire.core.contracts.wires import Gap, Reset

__all__ = [
    "AsyncClient",
    "AsyncTurnHandle",
    "Client",
    "ClientError",
    "ConnectionLost",
    "ConnectionRestored",
    "Gap",
    "MessageOptions",
    "ReceivedEvent",
    "ReconnectLimits",
    "RefusedError",
    "Reset",
    "ServerAddress",
    "ServerUnreachableError",
    "SessionPage",
    "SessionSummary",
    "SessionTurns",
    "TurnHandle",
    "TurnSnapshot",
    "TurnSummary",
    "TurnUpdate",
    "attachment",
]
