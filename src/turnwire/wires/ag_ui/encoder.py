"""`ag_ui`: a log as events of the Agent User Interaction protocol.

Whatever is open when a run ends is closed before its end, also where the log was cut short, and only the start of
another run follows the end.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, assert_never

from msgspec import Raw, to_builtins

from turnwire.core.contracts.wires import Encoder
from turnwire.core.log.codec import LoggedEvent, ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
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
    UsageEvent,
)
from turnwire.wires.ag_ui.frames import (
    Events,
    RunInterrupts,
    RunSequence,
    SubAgents,
    application_name,
    approval_interrupt,
    call_events,
    custom,
    decision_event,
    event_json,
    interrupt_id,
    new_text,
    numbered,
    question_interrupt,
    result_event,
    result_text,
    run_ended,
    run_suspended,
    run_usage,
    shared_state,
    text_ended,
    text_started,
    unanswered,
)
from turnwire.wires.frames import StatefulWire, answer_json, omit_none
from turnwire.wires.turn_view import AgentPath, AnswerEvent, OpenTexts, OpenWaits, ShownCalls, TurnView

VERSIONS = (0, 1)
_ID = re.compile(r"[A-Za-z0-9._:@-]{0,160}")


class AgUi(StatefulWire):
    """The wire for one client version, under the client's own names for the thread and its runs.

    `run_ids` name a turn's runs in order; an empty name is replaced by one of Turnwire's.
    """

    name = "ag_ui"
    media_type = "text/event-stream"
    numbers_frames = True
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, thread_id: str = "", run_ids: Sequence[str] = (), version: int = 1) -> None:
        """Raise ValueError for ids with other characters, and for an unknown version."""
        if not all(_ID.fullmatch(name) for name in (thread_id, *run_ids)):
            raise ValueError("thread_id, run_id: at most 160 letters, digits and . _ : @ -")
        if version not in VERSIONS:
            raise ValueError("version: 0 or 1")
        self.thread_id = thread_id
        self.run_ids = tuple(run_ids)
        self.version = version
        self.key = f"ag_ui?version={version}&thread_id={thread_id}&run_ids={','.join(self.run_ids)}"

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        version = {"0": 0, "1": 1}.get(query.get("version", "1"), -1)
        run_id = query.get("run_id")
        return cls(query.get("thread_id", ""), (run_id,) if run_id else (), version)

    def encoder(self) -> Encoder:
        return RunEncoder(self.thread_id, self.run_ids, self.version)


class RunEncoder:
    takes_heartbeat = True

    def __init__(self, thread_id: str, run_ids: tuple[str, ...], version: int) -> None:
        self._runs = RunSequence(thread_id, run_ids, version)
        self._version = version
        self._turn = TurnView()
        self._sent = 0
        self._texts = OpenTexts()
        self._calls = ShownCalls()
        self._subagents = SubAgents()
        self._searches: dict[tuple[AgentPath, str], str] = {}
        self._parent_ids: dict[AgentPath, str] = {}
        self._waits = OpenWaits[bytes]()
        self._interrupts = RunInterrupts()

    def frame(self, logged: LoggedEvent) -> bytes:
        content = answer_json(logged.body)
        if content and not self._waits and (prefix := self._texts.answer_prefix):
            self._sent += 1
            return b"id: %d\ndata: %b%b}\n\n" % (self._sent, prefix, content)
        events = self._next_run() if self._waits.end_at(logged) else []
        if content:
            events += self._delta((), content, logged.position, is_reasoning=False)
        else:
            events += self._event(logged)
        frames = numbered(events, self._sent)
        self._sent += len(events)
        return frames

    def pause(self) -> bytes:
        return numbered(self._suspended(), self._sent) if self._waits else b""

    def _event(self, logged: LoggedEvent) -> Events:
        event, position = self._turn.read(logged), logged.position
        path = event.agent_path
        match event:
            case SessionEvent():
                self._calls.prefix = f"{event.turn_id}:"
                return self._runs.start(event.session_id, event.turn_id, event.agent)
            case TokenEvent() | ReasoningEvent():
                return self._text(event, position)
            case StatusEvent():
                # A custom event is no message, so it may come in the middle of one.
                return self._custom(logged, "turnwire.status")
            case HandoffEvent():
                return self._end_text(path) + self._custom(logged, "turnwire.handoff") + self._hand_over(event)
            case SearchEvent() | ReviewEvent():
                return self._activity(event, position)
            case InputEvent():
                return self._end_text(path) + self._custom(logged, "turnwire.input")
            case QuestionEvent():
                return self._question(event, position)
            case ReplyEvent():
                return self._answer(event, custom("turnwire.reply", Raw(logged.body)))
            case CitationEvent():
                return self._custom(logged, "turnwire.citation")
            case CustomEvent():
                if (shared := shared_state(event)) is not None:
                    return [shared]
                started = self._start_agents(path, position)
                return [*started, custom(application_name(event.name), event.data, self._subagents.id_of(path))]
            case ToolCallEvent():
                if self._calls.is_open(event.call_id):
                    return []
                self._waits.begin(event)
                return self._call(event, event.args, position) + self._client_call(event)
            case ToolProgressEvent():
                return self._progress(event, position)
            case ToolResultEvent():
                return self._result(event, position)
            case ApprovalRequestEvent():
                return self._approval_request(event, position)
            case ApprovalResponseEvent():
                return self._answer(event, decision_event(event, self._calls.find(event.call_id)))
            case DoneEvent():
                return self._end(event, position)
            case MessageEvent() | UsageEvent() | ErrorEvent() | ResponseEvent() | RestartEvent():
                return []
            case _:
                assert_never(event)

    # Runs

    def _suspended(self) -> Events:
        """Return the events that end a run that waits for answers. The state does not change."""
        return [
            *self._text_ends(),
            *self._subagents.ends(self._interrupts.ids),
            event_json("STEP_FINISHED", stepName=self._turn.agent),
            run_suspended(self._runs.ids, self._interrupts.all, run_usage(self._turn.usage_by_model)),
        ]

    def _answer(self, event: AnswerEvent, shown: bytes) -> Events:
        """Keep an answer for the next run, which begins with the last one that the turn waits for."""
        return self._next_run() if self._waits and self._waits.answer(event, shown) else []

    def _next_run(self) -> Events:
        ended = self._suspended()
        self._clear()
        self._interrupts = RunInterrupts()
        self._turn.begin_segment()
        return ended + self._runs.next(self._turn.agent) + self._waits.end()

    def _end(self, done: DoneEvent, position: int) -> Events:
        ended = self._text_ends()
        for call, path in self._calls.open.items():
            ended += self._start_agents(path, position)
            ended.append(unanswered(call, self._subagents.id_of(path)))
        ended += [*self._subagents.ends({}), event_json("STEP_FINISHED", stepName=self._turn.agent)]
        self._clear()
        return [*ended, run_ended(self._runs.ids, self._version, done, self._turn)]

    def _clear(self) -> None:
        self._texts.clear()
        self._subagents.clear()
        self._parent_ids.clear()

    # Agents

    def _start_agents(self, path: AgentPath, position: int) -> Events:
        return self._subagents.start(path, self._turn.turn_id, position) if self._version else []

    def _hand_over(self, handoff: HandoffEvent) -> Events:
        """Begin a new step of the run, unless the handoff is inside a sub-agent."""
        if handoff.agent_path:
            return []
        before, self._turn.agent = self._turn.agent, handoff.agent
        return [event_json("STEP_FINISHED", stepName=before), event_json("STEP_STARTED", stepName=handoff.agent)]

    def _custom(self, logged: LoggedEvent, name: str) -> Events:
        """Return the event as the log has it."""
        started = self._start_agents(logged.agent_path, logged.position)
        return [*started, custom(name, Raw(logged.body), self._subagents.id_of(logged.agent_path))]

    def _activity(self, activity: SearchEvent | ReviewEvent, position: int) -> Events:
        """Return an activity; later events of the same search change the first one."""
        path = activity.agent_path
        started = self._end_text(path) + self._start_agents(path, position)
        content: dict[str, Any] = to_builtins(activity)
        kind = content.pop("type")
        fields = {"activityType": kind, "subagentRunId": self._subagents.id_of(path)}
        key = path, activity.step_id
        if kind == "search" and key in self._searches:
            patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in content.items()]
            return [*started, event_json("ACTIVITY_DELTA", messageId=self._searches[key], patch=patch, **fields)]
        message_id = f"{self._turn.turn_id}:{kind}-{position}"
        if kind == "search":
            self._searches[key] = message_id
        return [*started, event_json("ACTIVITY_SNAPSHOT", messageId=message_id, content=content, **fields)]

    # Messages

    def _text(self, piece: TokenEvent | ReasoningEvent, position: int) -> Events:
        path, is_reasoning = piece.agent_path, isinstance(piece, ReasoningEvent)
        if not piece.content:
            return []  # Clients before 1.0 refuse an empty piece.
        if path and not self._version:
            kind = "reasoning" if is_reasoning else "text"
            return [custom("turnwire.agent", {"agent_path": path, "kind": kind, "delta": piece.content})]
        return self._delta(path, ascii_json(piece.content), position, is_reasoning=is_reasoning)

    def _delta(self, path: AgentPath, content: bytes, position: int, *, is_reasoning: bool) -> Events:
        """Return a piece of a message, whose text is encoded as JSON, after the start of the message if it is new."""
        started: Events = []
        text = self._texts.find(path, is_reasoning=is_reasoning)
        if text is None:
            started = self._start_agents(path, position) + self._end_text(path)
            message_id = f"{self._turn.turn_id}:{'reasoning' if is_reasoning else 'text'}-{position}"
            self._parent_ids.pop(path, None)
            if not is_reasoning:
                self._parent_ids[path] = message_id
            agent = self._subagents.id_of(path)
            text = new_text(message_id, agent, is_reasoning=is_reasoning)
            self._texts.start(path, text)
            started += text_started(text, agent)
        return [*started, text.prefix + content + b"}"]

    def _end_text(self, path: AgentPath) -> Events:
        text = self._texts.end(path)
        return [] if text is None else text_ended(text, self._subagents.id_of(path))

    def _text_ends(self) -> Events:
        """Return the events that end all open messages. They stay open until `_clear`."""
        return [end for path, text in self._texts.all for end in text_ended(text, self._subagents.id_of(path))]

    # Tool calls

    def _call(self, source: ToolCallEvent | ApprovalRequestEvent | ToolResultEvent, args: Any, position: int) -> Events:
        path = source.agent_path
        started = self._end_text(path) + self._start_agents(path, position)
        # Calls with no text between them belong to one message.
        parent = self._parent_ids.setdefault(path, f"{self._turn.turn_id}:calls-{position}")
        call = self._calls.start(source.call_id, position, path)
        return started + call_events(call, source.tool, args, parent, self._subagents.id_of(path))

    def _client_call(self, call: ToolCallEvent) -> Events:
        """Return the event by which TanStack AI knows that it has to run a tool; other clients ignore it."""
        if call.runs_on != "client":
            return []
        fields = {"toolCallId": self._calls.find(call.call_id), "toolName": call.tool, "input": call.args}
        return [custom("tool-input-available", fields, self._subagents.id_of(call.agent_path))]

    def _progress(self, progress: ToolProgressEvent, position: int) -> Events:
        path = progress.agent_path
        if not self._calls.is_open(progress.call_id):
            return []
        call = self._calls.find(progress.call_id)
        value = omit_none(toolCallId=call, text=progress.text, fraction=progress.fraction, data=progress.data)
        started = self._start_agents(path, position)
        return [*started, custom("turnwire.tool_progress", value, self._subagents.id_of(path))]

    def _result(self, result: ToolResultEvent, position: int) -> Events:
        path = result.agent_path
        if self._waits:
            # The client has sent it, and has a message of its own for it.
            value = {"toolCallId": self._calls.end(result.call_id), "success": result.success, "result": result.result}
            return self._answer(result, custom("turnwire.tool_result", value))
        started = self._end_text(path) + self._start_agents(path, position)
        if self._calls.find(result.call_id) is None:
            started += self._call(result, {}, position)
        self._parent_ids.pop(path, None)
        message_id, call = f"{self._turn.turn_id}:result-{position}", self._calls.end(result.call_id)
        content = result_text(result.success, result.result)
        return [*started, result_event(message_id, call, content, self._subagents.id_of(path))]

    def _approval_request(self, request: ApprovalRequestEvent, position: int) -> Events:
        path = request.agent_path
        called = [] if self._calls.is_open(request.call_id) else self._call(request, request.args, position)
        started = self._end_text(path) + self._start_agents(path, position)
        own_id, call = interrupt_id(self._turn.turn_id, position), self._calls.find(request.call_id) or ""
        self._waits.begin(request)
        self._interrupts.add(path, approval_interrupt(own_id, request, call, self._subagents.id_of(path)))
        return called + started

    def _question(self, question: QuestionEvent, position: int) -> Events:
        path = question.agent_path
        started = self._end_text(path) + self._start_agents(path, position)
        self._waits.begin(question)
        own_id = interrupt_id(self._turn.turn_id, position)
        self._interrupts.add(path, question_interrupt(own_id, question, self._subagents.id_of(path)))
        return started
