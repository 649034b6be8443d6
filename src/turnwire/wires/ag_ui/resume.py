"""Which run of which turn a client means, and where in it the client is.

A turn that has waited for a person is several runs. The first goes by the client's name of the turn, a later one by the
name it was resumed with, or by the first name and its number. Frames are numbered through the whole turn.
"""

from collections import OrderedDict

from msgspec import Struct

from turnwire.app import Turnwire
from turnwire.core.codec import decode_event
from turnwire.core.contracts import Wire
from turnwire.core.errors import BadCursorError, RestartedError, TurnNotFoundError
from turnwire.core.events import ApprovalRequestEvent, ApprovalResponseEvent
from turnwire.core.follow import PAGE
from turnwire.core.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.streams.resume import ResumePoint, place_of_frame, settled_encoder, void_of
from turnwire.wires.ag_ui.encoder import AgUi

_APPROVAL_BODY = b'{"type":"approval_re'
_MOST_NAMES = 10_000


class RunRequest(Struct, frozen=True):
    """A request for a decision, and the number of the run that made it."""

    event: ApprovalRequestEvent
    run: int


class ThreadLog(Struct):
    """What a turn's log tells of its runs.

    `starts` are how many frames stand before each of them; `asked` are the requests by their positions, `open` those
    that are undecided; `pause` is how the run ends that waits. `settled` are the frames before the first of which what
    follows was begun anew.
    """

    starts: list[int]
    asked: dict[int, RunRequest]
    open: set[int]
    pause: bytes = b""
    settled: int | None = None


class RunName(Struct, frozen=True):
    """A run: its turn, its number there, and what the client calls it and the one before."""

    record: TurnRecord
    number: int = 1
    given: str = ""
    before: str = ""

    @property
    def first(self) -> str:
        return self.record.external_id or self.record.id

    @property
    def name(self) -> str:
        return self.given or (f"{self.first}:{self.number}" if self.number > 1 else self.first)

    def wire(self, thread_id: str, version: int) -> AgUi:
        """How it is written: by the client's names where there are any."""
        run_ids = [self.first, *[""] * (self.number - 1)]
        if self.number > 2:
            run_ids[-2] = self.before
        run_ids[-1] = self.name
        return AgUi(thread_id, run_ids, version)


class LaterRuns:
    """The names that clients have given to runs after the first, while this process remembers them."""

    def __init__(self) -> None:
        self._named: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()

    def remember(self, principal: str, run: RunName) -> None:
        self._named[principal, run.name] = run.record.id, run.number
        if len(self._named) > _MOST_NAMES:
            self._named.popitem(last=False)

    async def find(self, turnwire: Turnwire, principal: str, run_id: str) -> RunName:
        """Raises TurnNotFoundError."""
        store = turnwire.store
        if later := self._named.get((principal, run_id)):
            return RunName(await store.find_turn(principal, later[0]), later[1], run_id)
        try:
            return RunName(await store.find_turn(principal, run_id))
        except TurnNotFoundError:
            first, _, number = run_id.rpartition(":")
            if not (first and number.isascii() and number.isdecimal() and 0 < int(number[:6]) < 10_000):
                raise
        return RunName(await store.find_turn(principal, first), int(number[:6]))


async def read_story(turnwire: Turnwire, turn_id: str, wire: Wire) -> ThreadLog:
    """Raises HttpError 410."""
    store = turnwire.store
    void = await void_of(store, turn_id)
    encoder = settled_encoder(wire, void)
    story, newest = ThreadLog([0], {}, set()), dict[str, int]()
    first_void = min((span.start for span in void), default=None)
    position = said = 0
    try:
        while events := await store.read(turn_id, position, PAGE):
            for logged in events:
                if logged.position == first_void:
                    story.settled = said
                frame, position = encoder.frame(logged), logged.position
                if story.pause and frame.startswith(story.pause):
                    story.starts.append(said + story.pause.count(b"\n\n"))
                story.pause = encoder.pause()
                said += frame.count(b"\n\n")
                if logged.body.startswith(_APPROVAL_BODY) and not any(position in span for span in void):
                    _note(story, newest, decode_event(logged.body), position)
    except RestartedError:
        return await read_story(turnwire, turn_id, wire)  # It has come since we looked.
    return story


async def place_of_run(turnwire: Turnwire, run: RunName, wire: Wire, after: int) -> ResumePoint:
    """Where a client goes on that has the frames up to `after`, at the earliest where the run begins.

    Raises TurnNotFoundError, HttpError 409, 410 or 416.
    """
    had = after
    if run.number > 1 or after:
        story = await read_story(turnwire, run.record.id, wire)
        if run.number > len(story.starts):
            raise TurnNotFoundError(run.name)
        if story.settled is not None and after > story.settled:
            # The client cannot take back what it has of it.
            raise HttpError(409, "reset", f"what followed frame {story.settled} was begun anew; read from the start")
        after = max(after, story.starts[run.number - 1])
    return await place_of_frame(turnwire.store, run.record.id, wire, after, had=had)


def frame_number(text: str, field: str) -> int:
    """Raises BadCursorError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise BadCursorError(field)
    return int(text)


def _note(story: ThreadLog, newest: dict[str, int], event: object, position: int) -> None:
    if isinstance(event, ApprovalRequestEvent):
        story.open.discard(newest.get(event.call_id, 0))
        newest[event.call_id] = position
        story.asked[position] = RunRequest(event, len(story.starts))
        story.open.add(position)
    elif isinstance(event, ApprovalResponseEvent):
        story.open.discard(newest.get(event.call_id, 0))
