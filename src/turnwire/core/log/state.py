"""The fold of a log, event by event, into a `TurnState`."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Literal, assert_never

from msgspec import to_builtins

from turnwire.core.log.approvals import Decision
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    AttachedFile,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    InputEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.shared_state import SHARED_STATE, apply_state
from turnwire.core.log.turns import FollowUp, Input, Question, Step, TurnState

OPENING_POSITION = 2  # Of `message`, the last event that every log begins with.
_NONE: Mapping[str, Any] = MappingProxyType({})


class TurnFold:
    """Folds a log into a `TurnState`, and keeps what approvals, recovery and limits need to know beyond it."""

    __slots__ = (
        "_approvals",
        "_began_at",
        "_borders",
        "_changes",
        "_citation_positions",
        "_client_calls",
        "_client_results",
        "_marks",
        "_questions",
        "_replies",
        "_requests",
        "_responses",
        "_restarts",
        "_result_positions",
        "_shared_at",
        "_state",
        "_waiting_since",
        "pieces",
        "position",
        "steps_taken",
        "waited_ms",
    )

    def __init__(self) -> None:
        self._state = TurnState()
        self.pieces: list[str] = []
        """The tokens of the answer."""
        self.position = 0
        self._began_at = 0
        # The length of the answer at each event that is not a token of it: (position, pieces, code points).
        # The tokens in between have consecutive positions, so nothing has to be kept for each of them.
        self._marks: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._citation_positions: list[int] = []
        # The old values of changed fields, (position, target, field, value), for a restart to restore.
        self._changes: list[tuple[int, Step | TurnState, str, Any]] = []
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
        # The positions at which steps of the turn's own agent have ended, and the results' positions by their calls'.
        self._borders: list[int] = [OPENING_POSITION]
        self._result_positions: dict[int, int] = {}
        self._restarts: tuple[tuple[int, int], ...] = ()  # Position and `from_position`.
        self._shared_at = 0
        self._waiting_since = 0
        self.waited_ms = 0
        """The time that the turn has waited for people."""
        self.steps_taken = 0
        """The number of tool calls and searches, including those that a restart has made void."""

    def add(self, logged: LoggedEvent) -> None:
        event = logged.event
        if isinstance(event, TokenEvent) and not event.agent_path:
            self.add_token(event.content, logged.position, logged.at)
        else:
            self.position = logged.position
            self._fold(logged)
            self._mark_answer(logged.position)

    def add_token(self, content: str, position: int, at: int) -> None:
        """Add a token of the answer; nearly every event is one."""
        if not self.pieces:
            self._time("first_event_ms", at)
            self._time("first_token_ms", at)
        self.pieces.append(content)
        self.position = position

    @property
    def text(self) -> str:
        """Return the answer so far."""
        return "".join(self.pieces)

    @property
    def known_state(self) -> Any:
        """Return the state that the agent shares, if all readers have it; None if a restart may have taken it back."""
        is_known = not self._restarts or self._restarts[-1][0] < self._shared_at
        return self._state.shared_state if is_known else None

    @property
    def message(self) -> str:
        """Return the message that is being answered."""
        return self._state.follow_ups[-1].content if self._state.follow_ups else self._state.message

    @property
    def attachments(self) -> tuple[AttachedFile, ...]:
        """Return the files of the message that is being answered."""
        return self._state.follow_ups[-1].attachments if self._state.follow_ups else self._state.attachments

    @property
    def has_answer(self) -> bool:
        """Return True if there is text after the last message."""
        return len(self.text) > self.message_offset if self._state.follow_ups else bool(self.pieces)

    @property
    def message_position(self) -> int:
        return self._state.follow_ups[-1].position if self._state.follow_ups else OPENING_POSITION

    @property
    def message_offset(self) -> int:
        """Return the length of the answer before the last message."""
        return self._state.follow_ups[-1].answer_offset if self._state.follow_ups else 0

    @property
    def inputs(self) -> list[Input]:
        """Return the messages that have entered the turn, in order."""
        return self._state.inputs

    @property
    def undecided(self) -> list[ApprovalRequestEvent]:
        """Return the requests that a person has yet to decide."""
        return [request for call_id, request in self._requests.items() if call_id not in self._responses]

    def approval_request(self, call_id: str) -> ApprovalRequestEvent | None:
        """Return the latest request for a call, also one that is decided."""
        return self._requests.get(call_id)

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

    def question(self, question_id: str) -> Question | None:
        return self._questions.get(question_id)

    def reply(self, question_id: str) -> ReplyEvent | None:
        return self._replies.get(question_id)

    def client_call(self, call_id: str) -> ToolCallEvent | None:
        return self._client_calls.get(call_id)

    def client_result(self, call_id: str) -> ToolResultEvent | None:
        """Return the result that the client has sent for a call of one of its tools."""
        return self._client_results.get(call_id)

    def is_running(self, call_id: str) -> bool:
        """Return True if the log shows a tool call without a result."""
        step = self._find("tool", call_id)
        return step is not None and step.state in ("running", "waiting")

    @property
    def decisions(self) -> list[Decision]:
        """Return the decisions about calls that have no result yet."""
        decided = (self.decision(call_id) for call_id in self._responses if self.is_running(call_id))
        return [decision for decision in decided if decision]

    def decision(self, call_id: str) -> Decision | None:
        response = self._responses.get(call_id)
        if response is None:
            return None
        request = self._requests[call_id]
        return Decision(
            call_id=call_id,
            tool=request.tool,
            args=request.args if response.args is None else response.args,
            approved=response.approved,
            reason=response.reason,
            by=response.by,
            is_repeat=self._is_repeat(call_id),
            requested_args=None if response.args is None else request.args,
        )

    def has_call(self, call_id: str, until: int | None = None) -> bool:
        """Return True if the log shows a tool call, with `until` one up to that position."""
        calls = (step for step in self._state.steps if step.id == call_id and step.kind == "tool")
        return any(until is None or call.position <= until for call in calls)

    @property
    def own_calls(self) -> list[Step]:
        """Return the tool calls of the turn's own agent since the last message, in order."""
        begin = self.message_position
        return [s for s in self._state.steps if s.kind == "tool" and not s.agent_path and s.position > begin]

    def end_of(self, call: Step) -> int | None:
        """Return the position of a call's result."""
        return self._result_positions.get(call.position)

    @property
    def border(self) -> int:
        """Return the position of the last step that must not be repeated: a call, a result, a person's decision."""
        return self._borders[-1]

    @property
    def restarts(self) -> int:
        """Return the number of restarts, without those of the turn that this one was forked from."""
        return self.restarts_after(0)

    def restarts_after(self, position: int) -> int:
        # The first event after the copied ones may be the restart of the fork itself.
        position = max(position, (self._state.forked_at or -1) + 1)
        return sum(at > position for at, _ in self._restarts)

    def is_void(self, position: int, *, until: int | None = None) -> bool:
        """Return True if a restart made the event at this position void; with `until`, one that is not after it."""
        return any(
            from_position < position < at and (until is None or at <= until) for at, from_position in self._restarts
        )

    def elapsed(self, at: int) -> int:
        """Return the milliseconds from the acceptance of the turn to `at`."""
        return at - self._began_at

    def state(self) -> TurnState:
        self._state.text = self.text
        self._state.position = self.position
        return self._state

    def _fold(self, logged: LoggedEvent) -> None:
        state, event = self._state, logged.event
        match event:
            case SessionEvent():
                state.session_id, state.turn_id, state.agent = event.session_id, event.turn_id, event.agent
                state.forked_from, state.forked_at = event.forked_from, event.forked_at
            case MessageEvent() if logged.position > OPENING_POSITION:
                self._follow_up(logged, event)
            case MessageEvent():
                state.message, state.attachments = event.content, event.attachments
                self._began_at = logged.at
            case InputEvent():
                offset = self._answer_length()
                state.inputs.append(Input(event.content, event.turn_id, event.by, logged.position, offset, event.mode))
                self._borders.append(logged.position)
            case StatusEvent():
                self._change(logged, state, status=event.text)
            case HandoffEvent():
                self._step(logged, "handoff", f"handoff-{logged.position}", event.agent).state = "succeeded"
            case SearchEvent():
                self._search(logged, event)
            case ReviewEvent():
                step = self._step(logged, "review", event.step_id, event.verdict)
                step.state, step.result = "succeeded", to_builtins(event)
            case ToolCallEvent():
                step = self._step(logged, "tool", event.call_id, event.tool, event.args)
                self._note_tool(event.tool)
                self._pass_border(logged)
                if event.call_id in self._requests:
                    self._forget_approval(event.call_id)
                if event.runs_on == "client":
                    step.runs_on = "client"
                    self._client_calls = {**self._client_calls, event.call_id: event}
                    self._waiting_since = logged.at
            case ToolProgressEvent():
                if step := self._find("tool", event.call_id):
                    self._change(logged, step, progress=event.text if event.text is not None else step.progress)
            case ToolResultEvent():
                step = self._find("tool", event.call_id)
                step = step or self._step(logged, "tool", event.call_id, event.tool, {})
                outcome = "succeeded" if event.success else "failed"
                self._change(logged, step, state=outcome, result=event.result, ms=event.ms)
                self._note_tool(event.tool)
                self._result_positions[step.position] = logged.position
                self._pass_border(logged)
                if event.call_id in self._client_calls and event.call_id not in self._client_results:
                    self._client_results = {**self._client_results, event.call_id: event}
                    self._count_wait(logged)
            case CitationEvent():
                state.citations.append(event)
                self._citation_positions.append(logged.position)
            case ApprovalRequestEvent():
                step = self._find("tool", event.call_id)
                step = step or self._step(logged, "tool", event.call_id, event.tool, event.args)
                self._change(logged, step, state="waiting", reason=event.reason, editable=event.editable)
                self._approvals += ((logged.position, event),)
                self._add_request(event)
                self._waiting_since = logged.at
            case ApprovalResponseEvent():
                if event.call_id in self._requests:
                    self._approvals += ((logged.position, event),)
                    self._responses = {**self._responses, event.call_id: event}
                    self._pass_border(logged)
                    self._count_wait(logged)
                if step := self._find("tool", event.call_id):
                    self._change(logged, step, state="running")
                    if event.args is not None:
                        self._change(logged, step, args=event.args)
            case QuestionEvent():
                self._ask(logged, event)
            case ReplyEvent():
                if (question := self._questions.get(event.question_id)) and question.state == "open":
                    question.state, question.value = "declined" if event.declined else "answered", event.value
                    self._replies = {**self._replies, event.question_id: event}
                    self._pass_border(logged)
                    self._count_wait(logged)
            case RestartEvent():
                self._rewind(event.from_position)
                self._restarts += ((logged.position, event.from_position),)
                state.restarts = self.restarts
            case UsageEvent():
                if logged.position > (state.forked_at or 0):  # The turn that was forked has counted the rest.
                    state.usage = add_usage(state.usage, event)
            case ResponseEvent():
                self._change(logged, state, mode=event.mode, model=event.model, model_error=event.model_error)
                state.timings.update(event.timings or {})
            case ErrorEvent():
                self._change(logged, state, error=event)
            case DoneEvent():
                state.outcome, state.reason, state.joined = event.outcome, event.reason, event.joined
                self._time("total_ms", logged.at)
            case CustomEvent():
                if event.name == SHARED_STATE:
                    self._shared_at = logged.position
                    self._change(logged, state, shared_state=apply_state(state.shared_state, event))
            case TokenEvent() | ReasoningEvent():
                pass
            case _:
                assert_never(event)
        if "first_event_ms" not in state.timings and logged.position > OPENING_POSITION:
            self._time("first_event_ms", logged.at)

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
        self._state.questions = list(self._questions.values())
        self._pass_border(logged)
        self._waiting_since = logged.at

    def _count_wait(self, logged: LoggedEvent) -> None:
        """Add the time that the turn has waited for an answer. A fork has not waited before it began."""
        if logged.position > (self._state.forked_at or 0):
            self.waited_ms += logged.at - self._waiting_since
        self._waiting_since = logged.at

    def _follow_up(self, logged: LoggedEvent, event: MessageEvent) -> None:
        """Begin the answer to another message: what is open before it counts as cancelled."""
        follow_up = FollowUp(
            content=event.content,
            position=logged.position,
            answer_offset=self._answer_length(),
            attachments=event.attachments,
        )
        self._state.follow_ups += (follow_up,)
        for step in self._state.steps:
            if step.state in ("running", "waiting"):
                self._change(logged, step, state="failed", result={"error": "cancelled"})
        self._approvals, self._requests, self._responses = (), _NONE, _NONE
        self._client_calls, self._client_results = _NONE, _NONE
        for question in self.open_questions:
            question.state = "cancelled"
        self._borders.append(logged.position)

    def _time(self, name: str, at: int) -> None:
        self._state.timings.setdefault(name, self.elapsed(at))

    def _mark_answer(self, position: int) -> None:
        _, pieces, length = self._marks[-1]
        length += sum(map(len, self.pieces[pieces:]))
        self._marks.append((position, len(self.pieces), length))

    def _answer_length(self) -> int:
        _, pieces, length = self._marks[-1]
        return length + sum(map(len, self.pieces[pieces:]))

    def _note_tool(self, tool: str) -> None:
        if tool not in self._state.tools_used:
            self._state.tools_used.append(tool)

    def _find(self, kind: str, step_id: str) -> Step | None:
        return next((s for s in reversed(self._state.steps) if s.id == step_id and s.kind == kind), None)

    def _step(
        self,
        logged: LoggedEvent,
        kind: Literal["tool", "search", "review", "handoff"],
        step_id: str,
        name: str,
        args: Any = None,
    ) -> Step:
        step = Step(
            kind=kind,
            id=step_id,
            name=name,
            position=logged.position,
            answer_offset=self._answer_length(),
            args=args,
            agent_path=logged.agent_path,
        )
        self._state.steps.append(step)
        self.steps_taken += kind in ("tool", "search")
        return step

    def _pass_border(self, logged: LoggedEvent) -> None:
        if not logged.agent_path:
            self._borders.append(logged.position)

    def _is_repeat(self, call_id: str) -> bool:
        """Return True if the request was for a call that ran when the turn was restarted."""
        call = self._find("tool", call_id)
        requested_at = max(at for at, event in self._approvals if event is self._requests[call_id])
        return call is not None and any(call.position < restart < requested_at for restart, _ in self._restarts)

    def _add_request(self, event: ApprovalRequestEvent) -> None:
        self._responses = {key: value for key, value in self._responses.items() if key != event.call_id}
        self._requests = {**self._requests, event.call_id: event}

    def _forget_approval(self, call_id: str) -> None:
        """Forget the request for an earlier call of the same id: its decision is not about the new call."""
        self._approvals = tuple(each for each in self._approvals if each[1].call_id != call_id)
        self._requests = {key: value for key, value in self._requests.items() if key != call_id}
        self._responses = {key: value for key, value in self._responses.items() if key != call_id}

    def _search(self, logged: LoggedEvent, event: SearchEvent) -> None:
        step = self._find("search", event.step_id)
        step = step or self._step(logged, "search", event.step_id, event.tool, {"query": event.query})
        self._note_tool(event.tool)
        if event.phase != "started":
            if event.hits:
                self._time("first_evidence_ms", logged.at)
            outcome = "succeeded" if event.phase == "finished" else "failed"
            self._change(logged, step, state=outcome, result=to_builtins(event.hits), ms=event.ms)

    def _change(self, logged: LoggedEvent, target: Step | TurnState, **fields: Any) -> None:
        for name, value in fields.items():
            self._changes.append((logged.position, target, name, getattr(target, name)))
            setattr(target, name, value)

    def _rewind(self, position: int) -> None:
        """Forget the events after a position, except for the user's messages, the usage and the time they took."""
        mark = bisect_right(self._marks, position, key=itemgetter(0)) - 1
        marked, pieces, _ = self._marks[mark]
        del self._marks[mark + 1 :]
        del self.pieces[pieces + position - marked :]
        while self._changes and self._changes[-1][0] > position:
            _, target, name, before = self._changes.pop()
            setattr(target, name, before)
        self._state.steps = [step for step in self._state.steps if step.position <= position]
        self._state.follow_ups = tuple(each for each in self._state.follow_ups if each.position <= position)
        self._rewind_approvals(position)
        self._borders = [border for border in self._borders if border <= position] or [OPENING_POSITION]
        self._result_positions = {call: end for call, end in self._result_positions.items() if end <= position}
        for message in self._state.inputs:
            message.answer_offset = min(message.answer_offset, self._answer_length())
        citations = bisect_right(self._citation_positions, position)
        del self._state.citations[citations:], self._citation_positions[citations:]
        self._state.tools_used = []
        for step in self._state.steps:
            if step.kind in ("tool", "search"):
                self._note_tool(step.name)

    def _rewind_approvals(self, position: int) -> None:
        self._approvals = tuple((at, event) for at, event in self._approvals if at <= position)
        self._requests, self._responses = _NONE, _NONE
        for _, event in self._approvals:
            if isinstance(event, ApprovalRequestEvent):
                self._add_request(event)
            else:
                self._responses = {**self._responses, event.call_id: event}


def fold_events(events: Iterable[LoggedEvent]) -> TurnFold:
    """Fold the events of a log, from its first one on."""
    fold = TurnFold()
    for logged in events:
        fold.add(logged)
    return fold


def add_usage(total: Usage | None, event: UsageEvent) -> Usage:
    """Add the usage of one model call to a total. An absent number is unknown, not zero."""
    total = total or Usage()
    return Usage(
        input_tokens=_add(total.input_tokens, event.input_tokens),
        output_tokens=_add(total.output_tokens, event.output_tokens),
        cached_input_tokens=_add(total.cached_input_tokens, event.cached_input_tokens),
        reasoning_tokens=_add(total.reasoning_tokens, event.reasoning_tokens),
    )


def _add(total: int | None, more: int | None) -> int | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more
