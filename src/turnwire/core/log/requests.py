"""The fold of a log into the turn's requests to people and to its client, and their answers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    MessageEvent,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    SessionEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import Question

_NONE: Mapping[str, Any] = MappingProxyType({})


class Approval(Struct):
    """A request for a decision about a call, and the decision, with their positions."""

    request: ApprovalRequestEvent
    requested_at: int
    response: ApprovalResponseEvent | None = None
    decided_at: int = 0


class TurnRequests:
    """The approvals, questions and client calls of a turn, and the time that it has waited for their answers."""

    __slots__ = (
        "_approvals",
        "_forked_at",
        "_waiting_since",
        "client_calls",
        "client_results",
        "questions",
        "replies",
        "waited_ms",
    )

    def __init__(self) -> None:
        # By position; several may be for one call. These and the next ones are replaced, not changed, so that the many
        # turns that have none share the empty ones.
        self._approvals: tuple[Approval, ...] = ()
        # Questions and calls of the client's tools by id, and their answers. No restart makes them void.
        self.questions: Mapping[str, Question] = _NONE
        self.replies: Mapping[str, ReplyEvent] = _NONE
        self.client_calls: Mapping[str, ToolCallEvent] = _NONE
        self.client_results: Mapping[str, ToolResultEvent] = _NONE
        self._forked_at = 0
        self._waiting_since = 0
        self.waited_ms = 0
        """The time that the turn has waited for people."""

    @property
    def undecided(self) -> list[ApprovalRequestEvent]:
        """Return the requests that a person has yet to decide."""
        return [approval.request for approval in self.approvals.values() if approval.response is None]

    @property
    def open_questions(self) -> list[Question]:
        """Return the questions that nobody has answered."""
        return [question for question in self.questions.values() if question.state == "open"]

    @property
    def open_client_calls(self) -> list[ToolCallEvent]:
        """Return the calls of the client's tools that have no result."""
        return [call for call_id, call in self.client_calls.items() if call_id not in self.client_results]

    @property
    def is_waiting(self) -> bool:
        """Return True if the turn waits for a decision, a reply, or a result of the client."""
        return bool(self.undecided or self.open_questions or self.open_client_calls)

    @property
    def approvals(self) -> Mapping[str, Approval]:
        """Return the latest approval of each call, by the ids of the calls."""
        return {approval.request.call_id: approval for approval in self._approvals}

    def approval_request(self, call_id: str) -> ApprovalRequestEvent | None:
        """Return the latest request for a call, also one that is decided."""
        approval = self.approvals.get(call_id)
        return approval and approval.request

    def add(self, logged: LoggedEvent) -> None:
        event = logged.event
        match event:
            case SessionEvent():
                self._forked_at = event.forked_at or 0
            case MessageEvent():  # What is open before it counts as cancelled.
                self._approvals, self.client_calls, self.client_results = (), _NONE, _NONE
                for question in self.open_questions:
                    question.state = "cancelled"
            case ToolCallEvent():
                # A decision about an earlier call of the same id is not about this one.
                if event.call_id in self.approvals:
                    self._approvals = tuple(each for each in self._approvals if each.request.call_id != event.call_id)
                if event.runs_on == "client":
                    self.client_calls = {**self.client_calls, event.call_id: event}
                    self._waiting_since = logged.at
            case ToolResultEvent():
                if event.call_id in self.client_calls and event.call_id not in self.client_results:
                    self.client_results = {**self.client_results, event.call_id: event}
                    self._count_wait(logged)
            case ApprovalRequestEvent():
                self._approvals += (Approval(event, logged.position),)
                self._waiting_since = logged.at
            case ApprovalResponseEvent():
                if approval := self.approvals.get(event.call_id):
                    approval.response, approval.decided_at = event, logged.position
                    self._count_wait(logged)
            case QuestionEvent():
                self._ask(logged, event)
            case ReplyEvent():
                if (question := self.questions.get(event.question_id)) and question.state == "open":
                    question.state, question.value = "declined" if event.declined else "answered", event.value
                    self.replies = {**self.replies, event.question_id: event}
                    self._count_wait(logged)
            case RestartEvent():
                position = event.from_position
                self._approvals = tuple(each for each in self._approvals if each.requested_at <= position)
                for approval in self._approvals:
                    if approval.decided_at > position:
                        approval.response = None
            case _:
                pass

    def _ask(self, logged: LoggedEvent, event: QuestionEvent) -> None:
        question = Question(
            id=event.id,
            prompt=event.prompt,
            position=logged.position,
            schema=event.schema,
            call_id=event.call_id,
            agent_path=event.agent_path,
        )
        self.questions = {**self.questions, event.id: question}
        self._waiting_since = logged.at

    def _count_wait(self, logged: LoggedEvent) -> None:
        """Add the time that the turn has waited for an answer. A fork has not waited before it began."""
        if logged.position > self._forked_at:
            self.waited_ms += logged.at - self._waiting_since
        self._waiting_since = logged.at
