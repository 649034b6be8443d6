"""The runs of a turn, and the resume points in them.

A turn that has waited for a person is several runs. The first has the client's name of the turn, a later one the name
it was resumed with, or the first name and its number. Frames are numbered through the whole turn.
"""

from collections import OrderedDict

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.stores import LogReader
from turnwire.core.contracts.wires import Wire
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
    QuestionEvent,
    ReplyEvent,
    ToolCallEvent,
)
from turnwire.core.log.turns import TurnRecord
from turnwire.plugins import Service
from turnwire.server.errors import HttpError
from turnwire.server.services import Services
from turnwire.server.streams.resume import FRAMES, PositionFinder, ResumePoint, walk_log
from turnwire.wires.ag_ui.encoder import AgUi

_MAX_NAMES = 10_000
_WAIT_EVENTS = ("approval_request", "approval_response", "question", "reply", "tool_call")


class RunRequest(Struct, frozen=True):
    """An interrupt, and the number of the run that it has ended."""

    event: ApprovalRequestEvent | QuestionEvent
    run: int


class ThreadLog(PositionFinder):
    """The runs of a turn, as its log shows them, and the point after frame `after`, at the earliest in run `number`.

    `requests` are the interrupts by their positions, `open` those that are not answered; `client_calls` are the runs
    that have ended with a call of one of the client's tools, by call id.
    """

    def __init__(self, wire: Wire, number: int = 1, after: int = 0) -> None:
        super().__init__(wire, FRAMES, lambda run: max(after, run.start) if run.number == number else None)

    def begin(self) -> None:
        super().begin()
        self.requests: dict[int, RunRequest] = {}
        self.open: set[int] = set()
        self.client_calls: dict[str, int] = {}
        self._newest: dict[str, int] = {}

    def see(self, logged: LoggedEvent, frame: bytes) -> None:
        super().see(logged, frame)
        if logged.type in _WAIT_EVENTS:
            self._note(logged.event, logged.position)

    def _note(self, event: Event, position: int) -> None:
        match event:
            case ApprovalRequestEvent():
                self.open.discard(self._newest.get(event.call_id, 0))
                self._request(event.call_id, event, position)
            case QuestionEvent():
                self._request(event.id, event, position)
            case ApprovalResponseEvent():
                self.open.discard(self._newest.get(event.call_id, 0))
            case ReplyEvent():
                self.open.discard(self._newest.get(event.question_id, 0))
            case ToolCallEvent(runs_on="client"):
                self.client_calls[event.call_id] = len(self.segments)
            case _:
                pass

    def _request(self, name: str, event: ApprovalRequestEvent | QuestionEvent, position: int) -> None:
        self._newest[name] = position
        self.requests[position] = RunRequest(event, len(self.segments))
        self.open.add(position)


class RunName(Struct, frozen=True):
    """A run: its turn, its number there, and the client's names for it and for the run before."""

    record: TurnRecord
    number: int = 1
    client_name: str = ""
    previous: str = ""

    @property
    def first(self) -> str:
        return self.record.external_id or self.record.id

    @property
    def name(self) -> str:
        return self.client_name or (f"{self.first}:{self.number}" if self.number > 1 else self.first)

    def wire(self, thread_id: str, version: int) -> AgUi:
        """Return the wire of the run, with the client's names where there are any."""
        run_ids = [self.first, *[""] * (self.number - 1)]
        if self.number > 2:
            run_ids[-2] = self.previous
        run_ids[-1] = self.name
        return AgUi(thread_id, run_ids, version)


class RunNames(Service):
    """The names that clients have given to runs after the first, while this process remembers them."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._named: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()

    def remember(self, principal: str, run: RunName) -> None:
        self._named[principal, run.name] = run.record.id, run.number
        if len(self._named) > _MAX_NAMES:
            self._named.popitem(last=False)

    async def find(self, principal: str, run_id: str) -> RunName:
        """Return the run of this name. Raises TurnNotFoundError."""
        if later := self._named.get((principal, run_id)):
            return RunName(await self._store.find_turn(principal, later[0]), later[1], run_id)
        try:
            return RunName(await self._store.find_turn(principal, run_id))
        except TurnNotFoundError:
            first, _, number = run_id.rpartition(":")
            if not (first and number.isascii() and number.isdecimal() and 0 < int(number[:6]) < 10_000):
                raise
        return RunName(await self._store.find_turn(principal, first), int(number[:6]))


async def read_runs(store: LogReader, turn_id: str, wire: Wire) -> ThreadLog:
    """Return the runs of a turn. Raises HttpError 410."""
    log = ThreadLog(wire)
    await walk_log(store, turn_id, log)
    return log


async def find_in_run(store: LogReader, run: RunName, wire: Wire, after: int) -> ResumePoint:
    """Return the point after frame `after`, at the earliest the start of the run.

    Raises TurnNotFoundError, HttpError 409, 410 or 416.
    """
    log = ThreadLog(wire, run.number, after)
    void = await walk_log(store, run.record.id, log)
    if log.segment is None:
        raise TurnNotFoundError(run.name)
    if log.kept is not None and log.kept < after:
        # The client cannot take back what it has received.
        raise HttpError(409, "reset", f"a restart made void what followed frame {log.kept}; read from the start")
    log.check(after)
    return replace(log.point, void=void)
