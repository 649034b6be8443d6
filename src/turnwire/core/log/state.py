"""The fold of a log, event by event, into a `TurnState`."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Literal, assert_never

from msgspec import to_builtins

from turnwire.core.log.approvals import Decision
from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent
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
from turnwire.core.log.requests import TurnRequests
from turnwire.core.log.restarts import TurnRestarts
from turnwire.core.log.shared_state import SHARED_STATE, apply_state
from turnwire.core.log.turns import FollowUp, Input, Step, TurnState


class TurnFold:
    """Folds a log into a `TurnState`, the requests of the turn (`requests`), and what may be repeated (`restarts`)."""

    __slots__ = (
        "_began_at",
        "_changes",
        "_citation_positions",
        "_marks",
        "_result_positions",
        "_shared_at",
        "_state",
        "pieces",
        "position",
        "requests",
        "restarts",
        "steps_taken",
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
        # The positions of results by those of their calls.
        self._result_positions: dict[int, int] = {}
        self._shared_at = 0
        self.requests = TurnRequests()
        self.restarts = TurnRestarts()
        self.steps_taken = 0
        """The number of tool calls and searches, including those that a restart has made void."""

    def add(self, logged: LoggedEvent) -> None:
        event = logged.event
        if isinstance(event, TokenEvent) and not event.agent_path:
            self.add_token(event.content, logged.position, logged.at)
        else:
            self.position = logged.position
            if not isinstance(event, (TokenEvent, ReasoningEvent)):  # Most events are text, which asks for nothing.
                self.requests.add(logged)
                self.restarts.add(logged, self.requests)
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
        return self._state.shared_state if self.restarts.last_position < self._shared_at else None

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

    def is_running(self, call_id: str) -> bool:
        """Return True if the log shows a tool call without a result."""
        step = self._find("tool", call_id)
        return step is not None and step.state in ("running", "waiting")

    @property
    def decisions(self) -> list[Decision]:
        """Return the decisions about calls that have no result yet."""
        approvals = sorted(self.requests.approvals.items(), key=lambda item: item[1].decided_at)
        decided = (self.decision(call_id) for call_id, _ in approvals if self.is_running(call_id))
        return [decision for decision in decided if decision]

    def decision(self, call_id: str) -> Decision | None:
        approval = self.requests.approvals.get(call_id)
        if approval is None or approval.response is None:
            return None
        request, response, call = approval.request, approval.response, self._find("tool", call_id)
        return Decision(
            call_id=call_id,
            tool=request.tool,
            args=request.args if response.args is None else response.args,
            approved=response.approved,
            reason=response.reason,
            by=response.by,
            # The call ran when the turn was restarted.
            is_repeat=call is not None and self.restarts.has_between(call.position, approval.requested_at),
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
                if event.runs_on == "client":
                    step.runs_on = "client"
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
            case CitationEvent():
                state.citations.append(event)
                self._citation_positions.append(logged.position)
            case ApprovalRequestEvent():
                step = self._find("tool", event.call_id)
                step = step or self._step(logged, "tool", event.call_id, event.tool, event.args)
                self._change(logged, step, state="waiting", reason=event.reason, editable=event.editable)
            case ApprovalResponseEvent():
                if step := self._find("tool", event.call_id):
                    self._change(logged, step, state="running")
                    if event.args is not None:
                        self._change(logged, step, args=event.args)
            case QuestionEvent():
                state.questions = list(self.requests.questions.values())
            case RestartEvent():
                self._rewind(event.from_position)
                state.restarts = self.restarts.count
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
            case ReplyEvent() | TokenEvent() | ReasoningEvent():
                pass
            case _:
                assert_never(event)
        if "first_event_ms" not in state.timings and logged.position > OPENING_POSITION:
            self._time("first_event_ms", logged.at)

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
        self._result_positions = {call: end for call, end in self._result_positions.items() if end <= position}
        for message in self._state.inputs:
            message.answer_offset = min(message.answer_offset, self._answer_length())
        citations = bisect_right(self._citation_positions, position)
        del self._state.citations[citations:], self._citation_positions[citations:]
        self._state.tools_used = []
        for step in self._state.steps:
            if step.kind in ("tool", "search"):
                self._note_tool(step.name)


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
