"""Asks an agent on an extension's own behalf, in a session of its own, and waits for the answer."""

import asyncio
from contextlib import suppress

from turnwire.core.contracts import Accepted, Store
from turnwire.core.errors import AgentError, TurnwireError
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnState
from turnwire.extensions.asking import Asker
from turnwire.extensions.bounded import Background
from turnwire.extensions.deliveries import Deliveries
from turnwire.extensions.following import Listener

_OWN = "self"


class Invoker:
    def __init__(
        self, store: Store, runner: TurnRunner, asker: Asker, deliveries: Deliveries, background: Background
    ) -> None:
        self._store = store
        self._runner = runner
        self._asker = asker
        self._deliveries = deliveries
        self._background = background

    async def invoke(self, prompt: str, agent_id: str | None, owner: str, listener: Listener) -> str:
        session = await self._deliveries.conversation(owner, _OWN)
        starting = self._background.run(
            self._asker.ask(
                prompt.strip(), principal=f"extension:{owner}", session=session, agent_id=agent_id, channel=owner
            )
        )
        try:
            state = await listener.hear(self._store, (await asyncio.shield(starting)).record.id)
        except BaseException as error:
            # Nobody else waits for this answer.
            self._background.run(self._abandon(starting))
            if isinstance(error, TurnwireError) and not isinstance(error, AgentError):
                raise AgentError(str(error), code=error.code) from error
            raise
        return _completed(state)

    async def _abandon(self, starting: asyncio.Task[Accepted]) -> None:
        # It may have been accepted in the very moment that its caller left.
        with suppress(TurnwireError):
            await self._runner.cancel((await starting).record.id)


def _completed(state: TurnState) -> str:
    if state.outcome == "completed":
        return state.text
    if state.outcome == "cancelled":
        raise AgentError("The answer was stopped before it was complete.", code="cancelled")
    if state.error is None:
        raise AgentError("The answer was not completed.")
    raise AgentError(state.error.error, code=state.error.code, retryable=state.error.retryable)
