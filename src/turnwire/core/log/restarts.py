"""The fold of a log into what a restart may repeat, and what earlier restarts have made void."""

from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent
from turnwire.core.log.events import (
    ApprovalResponseEvent,
    InputEvent,
    MessageEvent,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    SessionEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.requests import TurnRequests


class TurnRestarts:
    """The restarts of a turn, and the steps of its own agent that must not be repeated."""

    __slots__ = ("_borders", "_forked_at", "_restarts")

    def __init__(self) -> None:
        # The positions at which steps of the turn's own agent have ended.
        self._borders: list[int] = [OPENING_POSITION]
        self._restarts: tuple[tuple[int, int], ...] = ()  # Position and `from_position`.
        self._forked_at = -1

    @property
    def border(self) -> int:
        """Return the position of the last step that must not be repeated: a call, a result, a person's decision."""
        return self._borders[-1]

    @property
    def count(self) -> int:
        """Return the number of restarts, without those of the turn that this one was forked from."""
        return self.count_after(0)

    @property
    def last_position(self) -> int:
        """Return the position of the last restart; 0 if there was none."""
        return self._restarts[-1][0] if self._restarts else 0

    def count_after(self, position: int) -> int:
        # The first event after the copied ones may be the restart of the fork itself.
        position = max(position, self._forked_at + 1)
        return sum(at > position for at, _ in self._restarts)

    def has_between(self, first: int, last: int) -> bool:
        """Return True if the turn was restarted between two positions."""
        return any(first < at < last for at, _ in self._restarts)

    def is_void(self, position: int, *, until: int | None = None) -> bool:
        """Return True if a restart made the event at this position void; with `until`, one that is not after it."""
        return any(
            from_position < position < at and (until is None or at <= until) for at, from_position in self._restarts
        )

    def add(self, logged: LoggedEvent, requests: TurnRequests) -> None:
        """Add an event that `requests` has already."""
        event = logged.event
        match event:
            case SessionEvent():
                self._forked_at = -1 if event.forked_at is None else event.forked_at
            case MessageEvent() | InputEvent():
                if logged.position > OPENING_POSITION:
                    self._borders.append(logged.position)
            case ToolCallEvent() | ToolResultEvent() | QuestionEvent():
                self._pass_border(logged)
            case ApprovalResponseEvent():
                if requests.approval_request(event.call_id) is not None:
                    self._pass_border(logged)
            case ReplyEvent():
                if requests.replies.get(event.question_id) is event:
                    self._pass_border(logged)
            case RestartEvent():
                position = event.from_position
                self._borders = [border for border in self._borders if border <= position] or [OPENING_POSITION]
                self._restarts += ((logged.position, position),)
            case _:
                pass

    def _pass_border(self, logged: LoggedEvent) -> None:
        if not logged.agent_path:
            self._borders.append(logged.position)
