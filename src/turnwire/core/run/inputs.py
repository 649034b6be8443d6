"""Messages that enter a running turn: `on_busy="steer"` and `"collect"`.

Such a message is accepted as a queued turn of its session, like any other, so it is durable, has an owner, a place in
the queue and an idempotency key. The turn that runs takes it over before its next model call: the message becomes an
`input` event of that turn, and then the queued turn ends as `joined`. If nobody takes it, the queued turn runs.

An `input` event is committed before the agent gets its message. A crash may leave the queued turn unfinished, but it
cannot start before the running one has ended, and no turn ends before the messages in its log have been settled. So a
message is answered exactly once.
"""

from collections.abc import Mapping
from types import MappingProxyType

from turnwire.core.contracts.stores import Store
from turnwire.core.errors import FencedError, PositionError, TurnEndedError, TurnNotFoundError
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.log.codec import OPENING_POSITION
from turnwire.core.log.events import InputEvent, InputMode, Joined, MessageEvent
from turnwire.core.log.files import ATTACHED
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.log.model_options import model_options
from turnwire.core.log.scope import current_turn
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turn_log import LogLimits, TurnLog
from turnwire.core.log.turns import TurnRecord

JOINS = "joins"
"""The option of a queued turn whose message may enter another one; its value is an `InputMode`."""


_NONE_TAKEN: Mapping[str, int] = MappingProxyType({})
_OVERHEAD_BYTES = 1024  # How much larger an `input` event may be than the `message` event that it comes from.


def join_mode(record: TurnRecord) -> InputMode | None:
    """Return how the message of a turn may enter another turn, or None if it may not."""
    mode = record.options.get(JOINS)
    if mode not in ("steer", "collect") or record.options.get(ATTACHED):
        return None
    # The model options of a message would be lost in a turn that has its own.
    return None if model_options(record.options).names else mode


def collected_message(record: TurnRecord, fold: TurnFold) -> str:
    """Return the message that a turn begins with, and those that were collected with it."""
    return PARAGRAPH.join((record.message, *(each.content for each in fold.inputs if each.mode == "collect")))


class TurnInputs:
    """Takes queued messages of the session into a running turn."""

    __slots__ = ("_limits", "_log", "_record", "_settled", "_store", "_taken")

    def __init__(self, store: Store, record: TurnRecord, log: TurnLog, limits: LogLimits) -> None:
        self._store = store
        self._record = record
        self._log = log
        self._limits = limits
        self._settled: tuple[str, ...] = ()
        self._taken: Mapping[str, int] = _NONE_TAKEN

    async def collect(self) -> None:
        """Take in the messages that came while this turn was queued, if it is one that collects."""
        if join_mode(self._record) == "collect" and self._log.position == OPENING_POSITION:
            await self._take_queued("collect")

    @property
    def message(self) -> str:
        """Return the message that the turn begins with, and those that were collected with it."""
        return collected_message(self._record, self._log.fold)

    async def take(self, place: str | None = None) -> list[str]:
        """Return the messages that have come for the agent, and write them to the log.

        `place` is the run whose model call comes next, for an agent that journals its model calls. Raises StoreError.
        """
        journal = current_journal()
        if journal is None:
            return []  # In a thread, whose work is not journaled.
        if place is None:
            return await self.take_at(journal.place("input"))
        return await self._take(*journal.next_call(place))

    async def is_due(self) -> bool:
        """Return True if `take_at` may return messages. Raises StoreError."""
        if (journal := current_journal()) is not None:
            if journal.recording.inputs:
                return True
            if journal.is_replaying:
                return False
        queued = await self._store.unfinished(self._record.session_id)
        taken = {message.turn_id for message in self._log.fold.inputs}
        return any(each.id not in taken and self._may_take(each, "steer") for each in queued)

    async def take_at(self, key: str) -> list[str]:
        """Return the messages that have come, for an agent that names the points where it takes them itself."""
        journal = current_journal()
        return await self._take(key, journal is not None and journal.is_replaying)

    async def _take(self, key: str, is_replayed: bool) -> list[str]:
        journal, messages = current_journal(), list[str]()
        taken = self._taken.get(key, 0)
        # A call that broke off and is made again may find more messages, so there may be several entries.
        while journal and (recorded := journal.recorded_inputs(f"{key}.{taken}")) is not None:
            messages += recorded
            taken += 1
        if not is_replayed and (new := await self._take_queued("steer", f"{key}.{taken}")):
            messages += new
            taken += 1
        if taken:
            self._taken = {**self._taken, key: taken}
        return messages

    async def settle(self) -> None:
        """End the turns whose messages have entered this one. Raises StoreError."""
        for message in self._log.fold.inputs:
            if message.turn_id not in self._settled:
                await self._log.flush()  # A message that the store has not taken is not in this turn.
                await self._end_joined(message.turn_id, Joined(self._log.turn_id, message.position), message.mode)
                self._settled += (message.turn_id,)

    async def _take_queued(self, mode: InputMode, key: str = "") -> list[str]:
        taken = {message.turn_id for message in self._log.fold.inputs}
        events: list[InputEvent] = []
        for queued in await self._store.unfinished(self._record.session_id):
            if queued.id == self._record.id or queued.id in taken:
                continue
            if not self._may_take(queued, mode):
                if mode == "collect":
                    break  # Messages sent after this one are answered after it.
                continue
            try:
                logged = (await self._store.read(queued.id, 1, 1))[0]
            except TurnNotFoundError:
                continue  # It was cancelled and deleted at this moment.
            opening = logged.event
            assert isinstance(opening, MessageEvent)
            if len(logged.body) > self._limits.max_event_bytes - _OVERHEAD_BYTES:
                continue
            events.append(InputEvent(opening.content, opening.by, opening.channel, queued.id, mode))
        if not events:
            return []
        # No await in between: events and entry are committed in one step, before the agent gets the messages.
        for event in events:
            self._log.append(event)
        messages = [event.content for event in events]
        if key and (journal := current_journal()) is not None:
            journal.record_inputs(key, messages)
        await self._log.flush()
        await self.settle()
        return messages

    def _may_take(self, queued: TurnRecord, mode: InputMode) -> bool:
        return (
            queued.phase == "queued"
            and queued.id != self._record.id
            and queued.agent == self._record.agent
            and join_mode(queued) == mode
        )

    async def _end_joined(self, turn_id: str, joined: Joined, mode: InputMode) -> None:
        try:
            queued = await self._store.find_turn(self._record.principal, turn_id)
            if queued.phase != "queued":
                return
            log = TurnLog(self._store, queued, self._limits)
            await log.restore()
            await log.end("joined", reason=mode, joined=joined)
        except (FencedError, PositionError, TurnEndedError, TurnNotFoundError):
            pass  # It was cancelled or taken by another process at this moment.


def current_inputs() -> TurnInputs | None:
    """Return the inputs of the running turn, or None outside a turn."""
    scope = current_turn()
    return None if scope is None else scope.inputs


async def take_inputs() -> list[str]:
    """Return the messages that were sent into the running turn with `on_busy="steer"`, each once.

    For agents that are plain functions: call it where the agent can use them, such as before a model call. A message
    that no agent takes becomes the next turn. Outside a turn there are none.
    """
    inputs = current_inputs()
    return [] if inputs is None else await inputs.take()
