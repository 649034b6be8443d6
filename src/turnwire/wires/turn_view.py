"""A turn as encoders read it from its log: its texts, calls and waits that are open, its usage, and how it ended.

Encoders are pure, and read every event once. A token that continues the answer needs none of this.
"""

from typing import Generic, TypeVar

from msgspec import Struct

from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import SUSPENSION_EVENTS, LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CustomEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    InputEvent,
    QuestionEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.state import add_usage

AgentPath = tuple[str, ...]
Shown = TypeVar("Shown")

ReportEvent = InputEvent | StatusEvent | HandoffEvent | SearchEvent | ReviewEvent | ToolProgressEvent | CustomEvent
"""Events about the course of a turn, which a protocol that has no form for them sends all alike, or leaves out.

The last case of a `match` hands the rest to a function whose parameter names these types, so that the type checker
finds every encoder that must learn a new event.
"""
WaitEvent = ApprovalRequestEvent | ToolCallEvent | QuestionEvent
AnswerEvent = ApprovalResponseEvent | ToolResultEvent | ReplyEvent

_SUSPENDED_TYPES = (*SUSPENSION_EVENTS, "approval_response", "reply")
"""The event types of a suspended turn until everything is answered; results of the client's tools come in too."""


class TurnView:
    """The parts of a turn that many encoders need: its ids, the usage since the last wait, and its end."""

    def __init__(self) -> None:
        self.turn_id = self.session_id = self.agent = ""
        self.usage: Usage | None = None
        self.usage_by_model: dict[str | None, Usage] = {}
        self.error: ErrorEvent | None = None
        self.response: ResponseEvent | None = None

    def read(self, logged: LoggedEvent) -> Event:
        """Return the event. Raises RestartedError at a restart: what was sent cannot be taken back."""
        event = logged.event
        match event:
            case SessionEvent():
                self.turn_id, self.session_id, self.agent = event.turn_id, event.session_id, event.agent
            case UsageEvent():
                self.usage = add_usage(self.usage, event)
                self.usage_by_model[event.model] = add_usage(self.usage_by_model.get(event.model), event)
            case ErrorEvent():
                self.error = event
            case ResponseEvent():
                self.response = event
            case RestartEvent():
                raise RestartedError(event.from_position)
            case _:
                pass
        return event

    def begin_segment(self) -> None:
        """Count usage from here on: the turn continues after a wait."""
        self.usage, self.usage_by_model = None, {}


class OpenWaits(Generic[Shown]):
    """The open waits of a suspended turn, and its answers, which clients are shown after the last of them."""

    def __init__(self) -> None:
        self._open: set[tuple[str, str]] = set()
        self._answers: list[Shown] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def begin(self, event: WaitEvent) -> None:
        """Add what the turn waits for from this event on; a call that the server runs is nothing to wait for."""
        match event:
            case ApprovalRequestEvent():
                self._open.add(("approval", event.call_id))
            case ToolCallEvent():
                if event.runs_on == "client":
                    self._open.add(("result", event.call_id))
            case QuestionEvent():
                self._open.add(("reply", event.id))

    def end_at(self, logged: LoggedEvent) -> bool:
        """Return True if the turn has waited and this event shows that it continues."""
        if not self._open:
            return False
        if logged.type == "tool_result":
            assert isinstance(logged.event, ToolResultEvent)
            return _answered(logged.event) not in self._open
        return logged.type not in _SUSPENDED_TYPES

    def answer(self, event: AnswerEvent, shown: Shown) -> bool:
        """Keep an answer. Return True if it is the last one, with which the turn continues."""
        self._answers.append(shown)
        if self._open == {_answered(event)}:
            return True
        self._open.discard(_answered(event))
        return False

    def end(self) -> list[Shown]:
        """End all waits, and return the answers."""
        answers, self._answers = self._answers, []
        self._open.clear()
        return answers


def _answered(event: AnswerEvent) -> tuple[str, str]:
    match event:
        case ApprovalResponseEvent():
            return "approval", event.call_id
        case ToolResultEvent():
            return "result", event.call_id
        case ReplyEvent():
            return "reply", event.question_id


class ShownCalls:
    """The tool calls of a turn by the ids that a client knows them under: an agent may use a call id twice.

    `prefix` stands before every id, `separator` before the position of a call whose id was used before. `open` has the
    calls without a result and the agents that made them.
    """

    def __init__(self, separator: str = "-") -> None:
        self.prefix = ""
        self.open: dict[str, AgentPath] = {}
        self._separator = separator
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._ids

    def __getitem__(self, call_id: str) -> str:
        return self._ids[call_id]

    def find(self, call_id: str) -> str | None:
        return self._ids.get(call_id)

    def is_open(self, call_id: str) -> bool:
        return self._ids.get(call_id) in self.open

    def start(self, call_id: str, position: int, path: AgentPath = ()) -> str:
        """Return a new id for the call."""
        call = self.prefix + call_id
        while call in self._used:
            call += f"{self._separator}{position}"
        self._used.add(call)
        self._ids[call_id] = call
        self.open[call] = path
        return call

    def end(self, call_id: str) -> str:
        call = self._ids[call_id]
        self.open.pop(call, None)
        return call

    def end_all(self) -> list[str]:
        """End the calls that have no result, and return them."""
        unfinished, self.open = [*self.open], {}
        return unfinished


class OpenText(Struct, frozen=True):
    """A text that is being written: of the answer or the reasoning of an agent, under an id of the protocol.

    `prefix` are the bytes before its next piece: nearly every event is one, so all but its text is encoded once.
    """

    id: str
    is_reasoning: bool = False
    prefix: bytes = b""


class OpenTexts:
    """The texts that are being written: at most one per agent.

    `answer_prefix` is the prefix of the turn's answer, b"" while it is not being written.
    """

    def __init__(self) -> None:
        self.answer_prefix = b""
        self._open: dict[AgentPath, OpenText] = {}

    def find(self, path: AgentPath, *, is_reasoning: bool) -> OpenText | None:
        """Return the text that a piece of this kind continues."""
        text = self._open.get(path)
        return text if text is not None and text.is_reasoning is is_reasoning else None

    def start(self, path: AgentPath, text: OpenText) -> None:
        self._open[path] = text
        if not path and not text.is_reasoning:
            self.answer_prefix = text.prefix

    def end(self, path: AgentPath) -> OpenText | None:
        """End the text of an agent, and return it, if there is one."""
        if not path:
            self.answer_prefix = b""
        return self._open.pop(path, None)

    @property
    def all(self) -> list[tuple[AgentPath, OpenText]]:
        return [*self._open.items()]

    def clear(self) -> None:
        self._open.clear()
        self.answer_prefix = b""
