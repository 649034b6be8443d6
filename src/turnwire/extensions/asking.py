"""Asks an agent in the name of somebody: finds their session, adds what extensions know, starts the turn."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from turnwire.core.contracts import Accepted, Agent, OnCrash, Store, repeats, resumes, takes_attachments
from turnwire.core.errors import SessionExistsError, SessionNotFoundError
from turnwire.core.events import Event
from turnwire.core.runner import TurnRequest, TurnRunner
from turnwire.core.turns import Turn
from turnwire.extensions.bounded import call, reason
from turnwire.extensions.contract import ContextProvider

logger = logging.getLogger("turnwire.extensions")

CONTEXT = "context"


class Asker:
    def __init__(self, store: Store, runner: TurnRunner, timeout: float) -> None:
        self._store = store
        self._runner = runner
        self._timeout = timeout
        self.providers: dict[str, ContextProvider] = {}
        """By the ids of their extensions."""

    async def ask(
        self,
        text: str,
        *,
        principal: str,
        session: str,
        agent_id: str | None,
        channel: str,
        key: str | None = None,
    ) -> Accepted:
        """Starts a turn, or joins the one that this key has started. Raises what `TurnRunner.start` raises."""
        context = await self._context(text, agent_id)
        while True:
            session_id = await self._session_id(principal, session)
            request = TurnRequest(
                principal=principal,
                message=text,
                session_id=session_id,
                session_external_id=session if session_id is None else None,
                agent=agent_id,
                channel=channel,
                idempotency_key=key,
                options={CONTEXT: context} if context else {},
            )
            try:
                return await self._runner.start(request)
            except SessionExistsError:
                continue  # Somebody has made it meanwhile.

    async def _session_id(self, principal: str, session: str) -> str | None:
        try:
            return (await self._store.find_session(principal, session)).id
        except SessionNotFoundError:
            return None

    async def _context(self, prompt: str, agent_id: str | None) -> str:
        """What the extensions know about it. One that fails or is slow is done without."""
        found = await asyncio.gather(
            *(self._ask_provider(name, one, prompt, agent_id) for name, one in self.providers.items())
        )
        return "\n\n".join(filter(None, found))

    async def _ask_provider(self, name: str, provider: ContextProvider, prompt: str, agent_id: str | None) -> str:
        try:
            found: Any = await call(self._timeout, provider.get_context, prompt, agent_id)
        except Exception as error:
            logger.warning("get_context of %r failed: %s; the agent is asked without it", name, reason(error))
            return ""
        return found.strip() if isinstance(found, str) else ""


class Enriched:
    """An agent that reads, before the message, what extensions know about it. The log keeps the user's own words."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.takes_attachments = takes_attachments(agent)
        self.on_crash: OnCrash = "resume" if resumes(agent) else "close"

    def repeats(self, tool: str) -> bool:
        return repeats(self.agent, tool)

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        if context := turn.options.get(CONTEXT):
            turn = replace(turn, message=f"{context}\n\n{turn.message}")
        return self.agent.answer(turn)
