"""The ledger: what the database did, in order, compared with a specification of claims, leases and appends.

The database does one thing at a time, so its history is linearizable if every step is allowed by the state before it.
The specification is written from `core/contracts.py` alone and shares no code with the stores.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from turnwire.core.contracts.stores import AppendRequest, JournalEntry
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import ApprovalResponseEvent, InputEvent


class TurnEntry(Struct):
    """A turn as the specification has it."""

    id: str
    session_id: str
    number: int
    agent: str
    message: str
    phase: str = "queued"
    owner: str | None = None
    epoch: int = 0
    log: list[LoggedEvent] = field(default_factory=list[LoggedEvent])
    journal: list[JournalEntry] = field(default_factory=list[JournalEntry])
    outcome: str | None = None
    is_retained: bool = True

    @property
    def has_ended(self) -> bool:
        return self.phase == "ended"

    def holds(self, position: int, epoch: int, body: bytes) -> bool:
        """Return True if this event is committed at this position."""
        if not 1 <= position <= len(self.log):
            return False
        logged = self.log[position - 1]
        return (logged.epoch, logged.body) == (epoch, body)


class Ledger:
    """Checks each step of the database; `broken` has what was not allowed."""

    def __init__(self, lease: float, clock: Callable[[], float]) -> None:
        self.turns: dict[str, TurnEntry] = {}
        self.broken: list[str] = []
        self.started: set[tuple[str, int, str, int]] = set()
        """The calls of agents whose start is committed: turn, segment, key, epoch."""
        self.commanded: set[str] = set()
        """The turns that a durable command is to stop."""
        self._lease = lease
        self._clock = clock
        self._leases: dict[str, float] = {}

    def unfinished(self) -> list[TurnEntry]:
        return [turn for turn in self.turns.values() if not turn.has_ended]

    # Calls

    def note_call(self, name: str, arguments: Any, named: dict[str, Any], result: Any, error: Exception | None) -> None:
        if error is not None:
            return
        match name:
            case "create_turn":
                self._create(arguments[0], result)
            case "renew":
                self._leases[arguments[0]] = self._clock() + self._lease
            case "retire":
                self._leases.pop(arguments[0], None)
            case "claim":
                self._claim(name, arguments[1], result)
            case "claim_next" | "take_over":
                for record in result:
                    self._claim(name, arguments[0], record)
            case "hold":
                self._hold(result)
            case "command":
                self.commanded.add(arguments[0].turn_id)
            case _:
                pass

    def _create(self, new: Any, accepted: Any) -> None:
        if not accepted.created:
            return
        record = accepted.record
        turn = TurnEntry(record.id, record.session_id, len(self.turns), record.agent, record.message)
        turn.log = list(new.opening)
        self.turns[record.id] = turn

    def _is_alive(self, worker: str | None) -> bool:
        return worker is not None and self._leases.get(worker, 0.0) > self._clock()

    def _claim(self, name: str, worker: str, record: Any) -> None:
        turn = self.turns[record.id]
        is_lost = turn.phase == "running" and not self._is_alive(turn.owner)
        allowed = {
            "claim": not turn.has_ended and (turn.phase != "running" or turn.owner == worker or is_lost),
            "claim_next": turn.phase == "queued" and self._is_first(turn),
            "take_over": is_lost,
        }
        if not allowed[name]:
            self.broken.append(f"{name} gave {turn.id} ({turn.phase}, of {turn.owner}) to {worker}")
        if record.epoch != turn.epoch + 1:
            self.broken.append(f"{name} of {turn.id} changed epoch {turn.epoch} to {record.epoch}")
        turn.phase, turn.owner, turn.epoch = "running", worker, record.epoch

    def _is_first(self, turn: TurnEntry) -> bool:
        others = [each for each in self.unfinished() if each.session_id == turn.session_id]
        return min(others, key=lambda each: each.number) is turn

    def _hold(self, record: Any) -> None:
        turn = self.turns[record.id]
        if turn.phase != "waiting":
            self.broken.append(f"{turn.id} was held while it was {turn.phase}")
        if record.epoch != turn.epoch + 1:
            self.broken.append(f"a hold of {turn.id} changed epoch {turn.epoch} to {record.epoch}")
        turn.epoch = record.epoch

    # Appends

    def note_append(self, request: AppendRequest, error: Exception | None) -> None:
        if error is not None:
            return
        turn = self.turns[request.turn_id]
        if turn.has_ended:
            self.broken.append(f"{turn.id} was written to after its end")
        if request.epoch != turn.epoch:
            self.broken.append(f"a writer of epoch {request.epoch} wrote to {turn.id}, which has epoch {turn.epoch}")
        expected = range(len(turn.log) + 1, len(turn.log) + 1 + len(request.events))
        if [logged.position for logged in request.events] != list(expected):
            positions = [logged.position for logged in request.events]
            self.broken.append(f"{turn.id} has {len(turn.log)} events and got {positions}")
        turn.log += request.events
        for entry in request.entries:
            self._record(turn, entry)
        self._change_phase(turn, request)

    def _change_phase(self, turn: TurnEntry, request: AppendRequest) -> None:
        is_last = [logged.is_last for logged in request.events]
        if any(is_last) != (request.ending is not None) or any(is_last[:-1]):
            self.broken.append(f"`done` of {turn.id} is not the last event of its ending")
        if request.ending is not None:
            turn.outcome = request.ending.outcome
        phase = request.new_phase
        if phase is not None:
            turn.phase, turn.owner = phase, None

    def _record(self, turn: TurnEntry, entry: JournalEntry) -> None:
        if entry.position > len(turn.log):
            self.broken.append(f"the journal of {turn.id} is ahead of its log")
        earlier = [each for each in turn.journal if (each.segment, each.key) == (entry.segment, entry.key)]
        turn.journal.append(entry)
        if entry.state != "started":
            return
        self.started.add((turn.id, entry.segment, entry.key, entry.epoch))
        if any(each.state == "finished" for each in earlier):
            self.broken.append(f"the finished call {entry.key} of {turn.id} was started again")
        elif earlier and entry.kind == "tool" and not entry.repeatable and not self._is_allowed(turn, entry, earlier):
            self.broken.append(f"the tool call {entry.key} of {turn.id} was repeated, and nobody allowed it")

    def _is_allowed(self, turn: TurnEntry, entry: JournalEntry, earlier: list[JournalEntry]) -> bool:
        """Return True if a person has approved a repetition of the call since it was started last."""
        since = earlier[-1].position
        return any(
            isinstance(logged.event, ApprovalResponseEvent)
            and logged.event.call_id == entry.call_id
            and logged.event.approved
            for logged in turn.log[since:]
        )

    # Whole logs

    def inputs(self) -> list[tuple[str, InputEvent]]:
        """Return the messages that have entered turns, with the turn that each entered."""
        return [
            (turn.id, logged.event)
            for turn in self.turns.values()
            for logged in turn.log
            if logged.type == "input" and isinstance(logged.event, InputEvent)
        ]
