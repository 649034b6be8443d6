"""Where turns run that a terminal shows: on a server, or in this process."""

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from turnwire.core.events import Event


class HostError(Exception):
    """It cannot be done there. The message says why, and what to do."""


class Heard(Struct, frozen=True):
    """An event of the turn, and the line of JSON that it is in the log."""

    event: Event
    body: bytes


class Lost(Struct, frozen=True):
    """The connection is lost; it is tried again. The turn goes on meanwhile."""

    why: str


class Found(Struct, frozen=True):
    """The connection is there again, and nothing was missed."""


class Noted(Struct, frozen=True):
    """Something about the log as a whole that its reader must know."""

    text: str


class PastSession(Struct, frozen=True):
    id: str
    title: str
    turn_count: int
    updated_at: str = ""


class Exchange(Struct, frozen=True):
    """What was asked, and what was answered."""

    message: str
    answer: str


class Host(Protocol):
    """Every method may raise HostError."""

    @property
    def name(self) -> str:
        """What it is, for a person."""
        ...

    def converse(
        self, message: str, session_id: str | None, agent: str | None
    ) -> AsyncGenerator[Heard | Lost | Found | Noted]:
        """Starts a turn and tells it to its end, each event once. It must be closed; that stops nothing."""
        ...

    async def cancel(self, turn_id: str) -> None: ...

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None: ...

    async def sessions(self, limit: int) -> list[PastSession]:
        """Newest first."""
        ...

    async def last_exchange(self, session_id: str) -> Exchange | None: ...

    async def agents(self) -> list[str]:
        """The names that can be asked for; none if it does not tell."""
        ...

    async def close(self) -> None: ...
