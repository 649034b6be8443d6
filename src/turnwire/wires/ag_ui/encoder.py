"""`ag_ui`: a log as events of the Agent User Interaction protocol.

Whatever is open when a run ends is closed before its end, also where the log was cut short, and only the start of
another run follows the end.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, assert_never

import msgspec
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
from turnwire.core.log.shared_state import state_change
from turnwire.wires.frames import (
    TOOL_UNFINISHED,
    TURN_FAILED,
    StatefulWire,
    answer_json,
    omit_none,
    text_or_json,
    usage_fields,
)
from turnwire.wires.turn_view import AgentPath, AnswerEvent, OpenText, OpenTexts, OpenWaits, ShownCalls, TurnView

Events = list[bytes]
"""Protocol events in order, each as its JSON."""
VERSIONS = (0, 1)
_PROTOCOL_VERSION = "1.0"
_SUCCESSFUL = ("completed", "joined")
_APPROVAL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
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
        self._interrupts: dict[AgentPath, list[dict[str, Any]]] = {}

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
                return self._logged(logged, "turnwire.status")
            case HandoffEvent():
                return self._end_text(path) + self._logged(logged, "turnwire.handoff") + self._hand_over(event)
            case SearchEvent() | ReviewEvent():
                return self._activity(event, position)
            case InputEvent():
                return self._end_text(path) + self._logged(logged, "turnwire.input")
            case QuestionEvent():
                return self._question(event, position)
            case ReplyEvent():
                return self._answer(event, custom("turnwire.reply", Raw(logged.body)))
            case CitationEvent():
                return self._logged(logged, "turnwire.citation")
            case CustomEvent():
                if (change := state_change(event)) is None:
                    # An application's event cannot pass for one of Turnwire's.
                    name = f"custom-{event.name}" if event.name.startswith("turnwire.") else event.name
                    return self._custom(logged, name, event.data)
                if change.snapshot is not None:
                    return [event_json("STATE_SNAPSHOT", snapshot=change.snapshot)]
                return [event_json("STATE_DELTA", delta=change.delta)]
            case ToolCallEvent():
                if self._calls.is_open(event.call_id):
                    return []
                self._waits.begin(event)
                return self._call(event, event.args, position) + self._client_call(event)
            case ToolProgressEvent():
                return self._progress(logged, event)
            case ToolResultEvent():
                return self._result(event, position)
            case ApprovalRequestEvent():
                return self._approval_request(event, position)
            case ApprovalResponseEvent():
                return self._answer(event, self._decision(event))
            case DoneEvent():
                return self._end(event, position)
            case MessageEvent() | UsageEvent() | ErrorEvent() | ResponseEvent() | RestartEvent():
                return []
            case _:
                assert_never(event)

    # Runs

    def _suspended(self) -> Events:
        """Return the events that end a run that waits for answers. The state does not change."""
        interrupts = [interrupt for found in self._interrupts.values() for interrupt in found]
        # Without interrupts it is a success: a client then runs its tools.
        outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
        usage = _run_usage(self._turn)
        return [
            *self._text_ends(),
            *self._subagents.ends(self._interrupts),
            event_json("STEP_FINISHED", stepName=self._turn.agent),
            event_json("RUN_FINISHED", **self._runs.ids, outcome=outcome, usage=usage),
        ]

    def _answer(self, event: AnswerEvent, shown: bytes) -> Events:
        """Keep an answer for the next run, which begins with the last one that the turn waits for."""
        return self._next_run() if self._waits and self._waits.answer(event, shown) else []

    def _next_run(self) -> Events:
        ended = self._suspended()
        self._clear()
        self._interrupts = {}
        self._turn.begin_segment()
        return ended + self._runs.next(self._turn.agent) + self._waits.end()

    def _end(self, done: DoneEvent, position: int) -> Events:
        ended = self._text_ends()
        for call, path in self._calls.open.items():
            ended += self._start_agents(path, position)
            # A client would show a call without a result as running for ever.
            content = result_text(False, TOOL_UNFINISHED)
            ended.append(_result_event(f"{call}:unanswered", call, content, self._subagents.id_of(path)))
        ended += [*self._subagents.ends({}), event_json("STEP_FINISHED", stepName=self._turn.agent)]
        self._clear()
        return [*ended, self._run_ended(done)]

    def _run_ended(self, done: DoneEvent) -> bytes:
        error, response, usage = self._turn.error, self._turn.response, _run_usage(self._turn)
        if done.outcome in ("failed", "interrupted"):
            message = (error.error if error else "") or TURN_FAILED
            code = error.code if error else done.reason or done.outcome
            return event_json("RUN_ERROR", message=message, code=code, usage=usage)
        result = omit_none(
            outcome=done.outcome,
            reason=done.reason,
            mode=response.mode if response else None,
            toolsUsed=response.tools_used if response else None,
            timings=response.timings if response else None,
        )
        outcome = {"type": "success" if done.outcome in _SUCCESSFUL else "cancelled"}
        # Clients before 1.0 raise an error of their own at an outcome other than success.
        known = outcome if self._version or done.outcome in _SUCCESSFUL else None
        return event_json("RUN_FINISHED", **self._runs.ids, result=result, outcome=known, usage=usage)

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

    def _interrupt_text(self, path: AgentPath, position: int) -> Events:
        """End the text of an agent, and start the agent if it is new."""
        return self._end_text(path) + self._start_agents(path, position)

    def _logged(self, logged: LoggedEvent, name: str) -> Events:
        """Return the event as the log has it."""
        return self._custom(logged, name, Raw(logged.body))

    def _custom(self, logged: LoggedEvent, name: str, value: Any) -> Events:
        path = logged.agent_path
        return [*self._start_agents(path, logged.position), custom(name, value, self._subagents.id_of(path))]

    def _activity(self, activity: SearchEvent | ReviewEvent, position: int) -> Events:
        """Return an activity; later events of the same search change the first one."""
        path = activity.agent_path
        started = self._interrupt_text(path, position)
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
            ids = {"messageId": message_id, "subagentRunId": agent}
            if is_reasoning:
                started += [event_json("REASONING_START", **ids)]
                started += [event_json("REASONING_MESSAGE_START", **ids, role="reasoning")]
            else:
                started += [event_json("TEXT_MESSAGE_START", **ids, role="assistant")]
            kind = "REASONING_MESSAGE_CONTENT" if is_reasoning else "TEXT_MESSAGE_CONTENT"
            text = OpenText(message_id, is_reasoning, event_json(kind, **ids)[:-1] + b',"delta":')
            self._texts.start(path, text)
        return [*started, text.prefix + content + b"}"]

    def _end_text(self, path: AgentPath) -> Events:
        text = self._texts.end(path)
        return [] if text is None else _text_ended(text, self._subagents.id_of(path))

    def _text_ends(self) -> Events:
        """Return the events that end all open messages. They stay open until `_clear`."""
        return [end for path, text in self._texts.all for end in _text_ended(text, self._subagents.id_of(path))]

    # Tool calls

    def _call(self, source: ToolCallEvent | ApprovalRequestEvent | ToolResultEvent, args: Any, position: int) -> Events:
        path = source.agent_path
        started = self._interrupt_text(path, position)
        # Calls with no text between them belong to one message.
        parent = self._parent_ids.setdefault(path, f"{self._turn.turn_id}:calls-{position}")
        call = self._calls.start(source.call_id, position, path)
        ids = {"toolCallId": call, "subagentRunId": self._subagents.id_of(path)}
        return [
            *started,
            event_json("TOOL_CALL_START", **ids, toolCallName=source.tool, parentMessageId=parent),
            event_json("TOOL_CALL_ARGS", **ids, delta=msgspec.json.encode(args).decode()),
            event_json("TOOL_CALL_END", **ids),
        ]

    def _client_call(self, call: ToolCallEvent) -> Events:
        """Return the event by which TanStack AI knows that it has to run a tool; other clients ignore it."""
        if call.runs_on != "client":
            return []
        fields = {"toolCallId": self._calls.find(call.call_id), "toolName": call.tool, "input": call.args}
        return [custom("tool-input-available", fields, self._subagents.id_of(call.agent_path))]

    def _progress(self, logged: LoggedEvent, progress: ToolProgressEvent) -> Events:
        if not self._calls.is_open(progress.call_id):
            return []
        call = self._calls.find(progress.call_id)
        value = omit_none(toolCallId=call, text=progress.text, fraction=progress.fraction, data=progress.data)
        return self._custom(logged, "turnwire.tool_progress", value)

    def _result(self, result: ToolResultEvent, position: int) -> Events:
        path = result.agent_path
        if self._waits:
            # The client has sent it, and has a message of its own for it.
            value = {"toolCallId": self._calls.end(result.call_id), "success": result.success, "result": result.result}
            return self._answer(result, custom("turnwire.tool_result", value))
        started = self._interrupt_text(path, position)
        if self._calls.find(result.call_id) is None:
            started += self._call(result, {}, position)
        self._parent_ids.pop(path, None)
        message_id, call = f"{self._turn.turn_id}:result-{position}", self._calls.end(result.call_id)
        content = result_text(result.success, result.result)
        return [*started, _result_event(message_id, call, content, self._subagents.id_of(path))]

    def _approval_request(self, request: ApprovalRequestEvent, position: int) -> Events:
        path = request.agent_path
        called = [] if self._calls.is_open(request.call_id) else self._call(request, request.args, position)
        started = self._interrupt_text(path, position)
        own_id, call = interrupt_id(self._turn.turn_id, position), self._calls.find(request.call_id) or ""
        self._waits.begin(request)
        schema, metadata = _APPROVAL_SCHEMA, dict[str, Any](kind="approval", toolName=request.tool, input=request.args)
        if request.editable:
            arguments = {"type": "object", "description": "Arguments that replace the requested ones."}
            schema = {**schema, "properties": {**schema["properties"], "args": arguments}}
            metadata["editable"] = True
        interrupt = omit_none(
            id=own_id,
            reason="tool_call",
            message=request.reason,
            toolCallId=call,
            responseSchema=schema,
            metadata=metadata,  # TanStack AI recognises an approval by it.
            subagentRunId=self._subagents.id_of(path),
        )
        self._interrupts.setdefault(path, []).append(interrupt)
        return called + started

    def _question(self, question: QuestionEvent, position: int) -> Events:
        path = question.agent_path
        started = self._interrupt_text(path, position)
        self._waits.begin(question)
        interrupt = omit_none(
            id=interrupt_id(self._turn.turn_id, position),
            reason="input_required",
            message=question.prompt,
            responseSchema=question.schema,
            metadata=omit_none(kind="question", questionId=question.id, callId=question.call_id),
            subagentRunId=self._subagents.id_of(path),
        )
        self._interrupts.setdefault(path, []).append(interrupt)
        return started

    def _decision(self, decision: ApprovalResponseEvent) -> bytes:
        value = omit_none(
            toolCallId=self._calls.find(decision.call_id),
            approved=decision.approved,
            reason=decision.reason,
            by=decision.by,
            callId=decision.call_id,
            args=decision.args,
        )
        return custom("turnwire.approval", value)


class RunSequence:
    """The runs of a turn: the first, and one more for each time the turn continues after a wait.

    `run_ids` are the client's names for them, in order. A run without a name is named after the first run.
    """

    def __init__(self, thread_id: str, run_ids: tuple[str, ...], version: int) -> None:
        self._thread_id = thread_id
        self._run_ids = run_ids
        self._version = version
        self._turn_id = ""
        self._number = 1

    @property
    def ids(self) -> dict[str, str]:
        return {"threadId": self._thread_id, "runId": self._run_id(self._number)}

    def start(self, session_id: str, turn_id: str, agent: str) -> Events:
        self._thread_id = self._thread_id or session_id
        self._turn_id = turn_id
        return self._started(agent)

    def next(self, agent: str) -> Events:
        self._number += 1
        return self._started(agent)

    def _started(self, agent: str) -> Events:
        started = event_json(
            "RUN_STARTED",
            **self.ids,
            parentRunId=self._run_id(self._number - 1) if self._number > 1 else None,
            protocolVersion=_PROTOCOL_VERSION if self._version else None,
        )
        return [started, event_json("STEP_STARTED", stepName=agent)]

    def _run_id(self, number: int) -> str:
        run_id = self._run_ids[number - 1] if number <= len(self._run_ids) else ""
        if run_id or number == 1:
            return run_id or self._turn_id
        return f"{self._run_id(1)}:{number}"


class SubAgents:
    """The sub-agents of a turn. A log does not say when one has finished, so all of them finish with the run.

    Ids last for the whole turn: a sub-agent that was suspended with one run keeps its id in the next.
    """

    def __init__(self) -> None:
        self._ids: dict[AgentPath, str] = {}
        self._running: list[AgentPath] = []

    def id_of(self, path: AgentPath) -> str | None:
        """Return None for the turn's own agent."""
        return self._ids.get(path)

    def start(self, path: AgentPath, turn_id: str, position: int) -> Events:
        """Start the agents on the path that have not started in this run, outermost first."""
        started: Events = []
        for depth, name in enumerate(path, 1):
            prefix = path[:depth]
            if prefix in self._running:
                continue
            agent = self._ids.setdefault(prefix, f"{turn_id}:agent-{position}-{depth}")
            self._running.append(prefix)
            parent = self._ids.get(prefix[:-1])
            started.append(event_json("SUBAGENT_STARTED", subagentRunId=agent, name=name, parentSubagentRunId=parent))
        return started

    def ends(self, interrupts: Mapping[AgentPath, Sequence[dict[str, Any]]]) -> Events:
        """Return the events that end all running sub-agents, innermost first. They keep running until `clear`.

        `interrupts` are those that each sub-agent is suspended for.
        """
        return [self._end(path, [each["id"] for each in interrupts.get(path, ())]) for path in reversed(self._running)]

    def clear(self) -> None:
        self._running.clear()

    def _end(self, path: AgentPath, interrupt_ids: list[str]) -> bytes:
        outcome = {"type": "suspended", "interruptIds": interrupt_ids} if interrupt_ids else None
        return event_json("SUBAGENT_FINISHED", subagentRunId=self._ids[path], outcome=outcome)


# Events


def numbered(events: Iterable[bytes], sent: int) -> bytes:
    """Return the frames of these events, after `sent` events."""
    return b"".join(b"id: %d\ndata: %b\n\n" % (number, body) for number, body in enumerate(events, sent + 1))


def event_json(kind: str, **fields: Any) -> bytes:
    return ascii_json({"type": kind, **omit_none(**fields)})


def custom(name: str, value: Any, agent: str | None = None) -> bytes:
    """Return an event of a kind that the protocol does not know. Names of Turnwire's own begin with `turnwire.`."""
    return event_json("CUSTOM", name=name, value={} if value is None else value, subagentRunId=agent)


def _run_usage(turn: TurnView) -> list[dict[str, Any]] | None:
    by_model = turn.usage_by_model
    return [{**omit_none(model=model), **usage_fields(usage)} for model, usage in by_model.items()] or None


def _text_ended(text: OpenText, agent: str | None) -> Events:
    ids = {"messageId": text.id, "subagentRunId": agent}
    if not text.is_reasoning:
        return [event_json("TEXT_MESSAGE_END", **ids)]
    return [event_json("REASONING_MESSAGE_END", **ids), event_json("REASONING_END", **ids)]


def _result_event(message_id: str, call: str, content: str, agent: str | None) -> bytes:
    fields = {"messageId": message_id, "toolCallId": call, "content": content}
    return event_json("TOOL_CALL_RESULT", **fields, role="tool", subagentRunId=agent)


def result_text(success: bool, result: Any) -> str:
    """Return a tool result as text. The protocol has no field for failure, so a failure is `{"error": …}`."""
    if not success:
        return msgspec.json.encode({"error": "The tool failed." if result in (None, "") else result}).decode()
    return "" if result is None else text_or_json(result)


def interrupt_id(turn_id: str, position: int) -> str:
    return f"{turn_id}:{position}"
