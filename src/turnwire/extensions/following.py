"""Follows a turn's log for somebody who may be slow.

The log is read when there is time for it: what was said meanwhile is one long piece then, and no step is left out.
The agent never waits for any of this.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from turnwire.core.contracts import Store
from turnwire.core.errors import EventsGoneError
from turnwire.core.events import ApprovalRequestEvent, ApprovalResponseEvent, RestartEvent, TokenEvent
from turnwire.core.fold import TurnFold
from turnwire.core.follow import follow
from turnwire.core.logged import LoggedEvent
from turnwire.core.turns import TurnState
from turnwire.extensions.contract import ApprovalAsk, StreamStep
from turnwire.extensions.steps import Steps, status_step

Chunk = Callable[[str], Awaitable[None]]
Step = Callable[[StreamStep], Awaitable[None]]
Ask = Callable[[ApprovalAsk], Awaitable[None]]
Restart = Callable[[str], Awaitable[bool]]


async def nothing(_: object) -> None:
    """For those who do not want to know."""


async def cannot(_: object) -> bool:
    """For those who cannot take back what they have said."""
    return False


class Listener:
    """Tells what happens in a turn, in order: pieces of the answer, steps, and what a person must decide."""

    def __init__(
        self, on_chunk: Chunk = nothing, on_step: Step = nothing, on_ask: Ask = nothing, on_restart: Restart = cannot
    ) -> None:
        self._on_chunk = on_chunk
        self._on_step = on_step
        self._on_ask = on_ask
        self._on_restart = on_restart
        self._fold = TurnFold()
        self._steps = Steps()
        self._pieces: list[str] = []
        self._told = 0

    async def hear(self, store: Store, turn_id: str) -> TurnState:
        """Returns what the turn has come to when it has ended. Raises what reading the log raises."""
        ended = await store.turn_state(turn_id)
        try:
            async with aclosing(follow(store, turn_id)) as batches:
                async for batch in batches:
                    decided = {
                        event.call_id: logged.position
                        for logged in batch
                        if isinstance(event := logged.event, ApprovalResponseEvent)
                    }
                    for logged in batch:
                        await self._take(turn_id, logged, decided)
                    await self._flush()
        except EventsGoneError:
            if ended is None:
                raise
            return ended
        return self._fold.state()

    async def _take(self, turn_id: str, logged: LoggedEvent, decided: Mapping[str, int]) -> None:
        event = logged.event
        self._fold.add(logged)
        if isinstance(event, TokenEvent):
            if not event.agent_path:
                self._pieces.append(event.content)
        elif isinstance(event, RestartEvent):
            await self._restart()
        elif isinstance(event, ApprovalRequestEvent):
            self._steps.asked(event)
            if decided.get(event.call_id, 0) > logged.position:
                return  # It was decided before there was time to ask.
            await self._flush()
            ask = ApprovalAsk(
                turn_id=turn_id,
                call_id=event.call_id,
                tool=event.tool,
                args=event.args,
                reason=event.reason,
                position=logged.position,
            )
            await self._on_ask(ask)
        elif step := self._steps.step(logged):
            await self._flush()
            await self._on_step(step)

    async def _flush(self) -> None:
        if self._pieces:
            text, self._pieces = "".join(self._pieces), []
            self._told += len(text)
            await self._on_chunk(text)

    async def _restart(self) -> None:
        """What was told is taken back where that can be done. In any case the end tells all of it as it is."""
        text = self._fold.text
        if self._told > len(text) and await self._on_restart(text):
            self._told = len(text)
        self._pieces = [text[self._told :]] if len(text) > self._told else []
        self._told = min(self._told, len(text))
        await self._on_step(status_step("Starting again"))
