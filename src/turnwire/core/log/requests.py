"""The fold of a log into the turn's requests to people and to its client, and their answers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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


class TurnRequests:
    """The approvals, questions and client calls of a turn, and the time that it has waited for their answers."""

    __slots__ = (
        "_approvals",
        "_client_calls",
        "_client_results",
        "_forked_at",
        "_questions",
        "_replies",
        "_requests",
        "_responses",
        "_waiting_since",
        "waited_ms",
    )

    def __init__(self) -> None:
        # Requests and responses by position, and the latest ones by call id. These and the next ones are replaced, not
        # changed, so that the many turns that have none share the empty ones.
        self._approvals: tuple[tuple[int, ApprovalRequestEvent | ApprovalResponseEvent], ...] = ()
        self._requests: Mapping[str, ApprovalRequestEvent] = _NONE
        self._responses: Mapping[str, ApprovalResponseEvent] = _NONE
        # Questions and calls of the client's tools by id, and their answers. No restart makes them void.
        self._questions: Mapping[str, Question] = _NONE
        self._replies: Mapping[str, ReplyEvent] = _NONE
        self._client_calls: Mapping[str, ToolCallEvent] = _NONE
        self._client_results: Mapping[str, ToolResultEvent] = _NONE
        self._forked_at = 0
        self._waiting_since = 0
        self.waited_ms = 0
        """The time that the turn has waited for people."""

    @property
    def undecided(self) -> list[ApprovalRequestEvent]:
        """Return the requests that a person has yet to decide."""
        return [request for call_id, request in self._requests.items() if call_id not in self._responses]

    @property
    def open_questions(self) -> list[Question]:
        """Return the questions that nobody has answered."""
        return [question for question in self._questions.values() if question.state == "open"]

    @property
    def open_client_calls(self) -> list[ToolCallEvent]:
        """Return the calls of the client's tools that have no result."""
        return [call for call_id, call in self._client_calls.items() if call_id not in self._client_results]

    @property
    def is_waiting(self) -> bool:
        """Return True if the turn waits for a decision, a reply, or a result of the client."""
        return bool(self.undecided or self.open_questions or self.open_client_calls)

    @property
    def questions(self) -> list[Question]:
        """Return all questions, in order."""
        return list(self._questions.values())

    @property
    def responses(self) -> Mapping[str, ApprovalResponseEvent]:
        """Return the decisions that people have made, by the ids of the calls."""
        return self._responses

    def approval_request(self, call_id: str) -> ApprovalRequestEvent | None:
        """Return the latest request for a call, also one that is decided."""
        return self._requests.get(call_id)

    def requested_at(self, call_id: str) -> int:
        """Return the position of the latest request for a call."""
        return max(at for at, event in self._approvals if event is self._requests[call_id])

    def question(self, question_id: str) -> Question | None:
        return self._questions.get(question_id)

    def reply(self, question_id: str) -> ReplyEvent | None:
        return self._replies.get(question_id)

    def client_call(self, call_id: str) -> ToolCallEvent | None:
        return self._client_calls.get(call_id)

    def client_result(self, call_id: str) -> ToolResultEvent | None:
        """Return the result that the client has sent for a call of one of its tools."""
        return self._client_results.get(call_id)

    def add(self, logged: LoggedEvent) -> None:
        event = logged.event
        match event:
            case SessionEvent():
                self._forked_at = event.forked_at or 0
            case MessageEvent():
                self._cancel_open()
            case ToolCallEvent():
                if event.call_id in self._requests:
                    self._forget_approval(event.call_id)
                if event.runs_on == "client":
                    self._client_calls = {**self._client_calls, event.call_id: event}
                    self._waiting_since = logged.at
            case ToolResultEvent():
                if event.call_id in self._client_calls and event.call_id not in self._client_results:
                    self._client_results = {**self._client_results, event.call_id: event}
                    self._count_wait(logged)
            case ApprovalRequestEvent():
                self._approvals += ((logged.position, event),)
                self._add_request(event)
                self._waiting_since = logged.at
            case ApprovalResponseEvent():
                if event.call_id in self._requests:
                    self._approvals += ((logged.position, event),)
                    self._responses = {**self._responses, event.call_id: event}
                    self._count_wait(logged)
            case QuestionEvent():
                self._ask(logged, event)
            case ReplyEvent():
                if (question := self._questions.get(event.question_id)) and question.state == "open":
                    question.state, question.value = "declined" if event.declined else "answered", event.value
                    self._replies = {**self._replies, event.question_id: event}
                    self._count_wait(logged)
            case RestartEvent():
                self._rewind_approvals(event.from_position)
            case _:
                pass

    def _cancel_open(self) -> None:
        """Forget the requests before a message: what is open counts as cancelled."""
        self._approvals, self._requests, self._responses = (), _NONE, _NONE
        self._client_calls, self._client_results = _NONE, _NONE
        for question in self.open_questions:
            question.state = "cancelled"

    def _ask(self, logged: LoggedEvent, event: QuestionEvent) -> None:
        question = Question(
            id=event.id,
            prompt=event.prompt,
            position=logged.position,
            schema=event.schema,
            call_id=event.call_id,
            agent_path=event.agent_path,
        )
        self._questions = {**self._questions, event.id: question}
        self._waiting_since = logged.at

    def _count_wait(self, logged: LoggedEvent) -> None:
        """Add the time that the turn has waited for an answer. A fork has not waited before it began."""
        if logged.position > self._forked_at:
            self.waited_ms += logged.at - self._waiting_since
        self._waiting_since = logged.at

    def _add_request(self, event: ApprovalRequestEvent) -> None:
        self._responses = {key: value for key, value in self._responses.items() if key != event.call_id}
        self._requests = {**self._requests, event.call_id: event}

    def _forget_approval(self, call_id: str) -> None:
        """Forget the request for an earlier call of the same id: its decision is not about the new call."""
        self._approvals = tuple(each for each in self._approvals if each[1].call_id != call_id)
        self._requests = {key: value for key, value in self._requests.items() if key != call_id}
        self._responses = {key: value for key, value in self._responses.items() if key != call_id}

    def _rewind_approvals(self, position: int) -> None:
        self._approvals = tuple((at, event) for at, event in self._approvals if at <= position)
        self._requests, self._responses = _NONE, _NONE
        for _, event in self._approvals:
            if isinstance(event, ApprovalRequestEvent):
                self._add_request(event)
            else:
                self._responses = {**self._responses, event.call_id: event}
