"""From a log to events of the protocol.

Whatever is open when a run ends is closed before it does, wherever the log was cut short; and nothing follows its end
but the start of another run.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, assert_never

from msgspec import Raw

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Control, Encoder
from turnwire.core.errors import RestartedError
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    MessageEvent,
    ReasoningEvent,
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
    Activities,
    OpenMessages,
    Path,
    Questions,
    RunToolCalls,
    RunUsage,
    Told,
    call_events,
    custom,
    interrupt_id,
    known,
    numbered,
    own_name,
    result_event,
    result_text,
    run_ended,
    run_interrupted,
    told,
    unanswered,
)

# Which sub-agents are at work. A log does not say when one has finished, so they all do when the run ends.


class SubAgents:
    """`ids` are for the whole turn: who was suspended with a run goes on with the next one."""

    def __init__(self) -> None:
        self._ids: dict[Path, str] = {}
        self._at_work: list[Path] = []

    def id_of(self, path: Path) -> str | None:
        """None for the turn's own agent."""
        return self._ids.get(path)

    def begin(self, path: Path, turn_id: str, position: int) -> Told:
        """Those on the path that have not begun in this run, outermost first."""
        begun: Told = []
        for depth, name in enumerate(path, 1):
            here = path[:depth]
            if here in self._at_work:
                continue
            own = self._ids.setdefault(here, f"{turn_id}:agent-{position}-{depth}")
            self._at_work.append(here)
            parent = self._ids.get(here[:-1])
            begun.append(told("SUBAGENT_STARTED", subagentRunId=own, name=name, parentSubagentRunId=parent))
        return begun

    def ended(self, asked: Mapping[Path, Sequence[str]] | None = None) -> Told:
        """How all of them end, innermost first. `asked` are the interrupts that each waits for."""
        return [self._end(path, (asked or {}).get(path)) for path in reversed(self._at_work)]

    def forget(self) -> None:
        self._at_work.clear()

    def _end(self, path: Path, waits_for: Sequence[str] | None) -> bytes:
        outcome = {"type": "suspended", "interruptIds": list(waits_for)} if waits_for else None
        return told("SUBAGENT_FINISHED", subagentRunId=self._ids[path], outcome=outcome)


# The runs of a turn: one, and another for each time that it was gone on with after it had waited for a person.


_VERSION = "1.0"


class RunSequence:
    """`run_ids` are the client's names of them, in order; where there is none, a run is named after the first."""

    def __init__(self, thread_id: str, run_ids: tuple[str, ...], version: int) -> None:
        self._thread_id = thread_id
        self._run_ids = run_ids
        self._version = version
        self._turn_id = ""
        self._number = 1

    @property
    def names(self) -> dict[str, str]:
        return {"threadId": self._thread_id, "runId": self._run_id(self._number)}

    def begin(self, session_id: str, turn_id: str, agent: str) -> Told:
        self._thread_id = self._thread_id or session_id
        self._turn_id = turn_id
        return self._started(agent)

    def next(self, agent: str) -> Told:
        self._number += 1
        return self._started(agent)

    def _started(self, agent: str) -> Told:
        """The start of a run, and of its first step: the agent whose turn it is."""
        begun = told(
            "RUN_STARTED",
            **self.names,
            parentRunId=self._run_id(self._number - 1) if self._number > 1 else None,
            protocolVersion=_VERSION if self._version else None,
        )
        return [begun, told("STEP_STARTED", stepName=agent)]

    def _run_id(self, number: int) -> str:
        given = self._run_ids[number - 1] if number <= len(self._run_ids) else ""
        if given or number == 1:
            return given or self._turn_id
        return later_run_id(self._run_id(1), number)


def later_run_id(first: str, number: int) -> str:
    """What a run is called that the client has no name for."""
    return f"{first}:{number}"


_TOKEN_BODY = b'{"type":"token","content":'
_TOKEN_START = len(_TOKEN_BODY)
_EMPTY = b'""'
# A turn waits until everything is decided that it has asked about; anything else means that it has gone on.
_WAITING_BODIES = b'{"type":"tool_call"', b'{"type":"approval_re'


class RunEncoder:
    takes_heartbeat = True

    def __init__(self, thread_id: str, run_ids: tuple[str, ...], version: int) -> None:
        self._runs = RunSequence(thread_id, run_ids, version)
        self._version = version
        self._turn_id = ""
        self._agent = ""
        self._said = 0
        self._voices = OpenMessages()
        self._calls = RunToolCalls()
        self._crew = SubAgents()
        self._activities = Activities()
        self._spent = RunUsage()
        self._parents: dict[Path, str] = {}
        self._questions = Questions()
        self._error: ErrorEvent | None = None
        self._response: ResponseEvent | None = None

    def frame(self, logged: LoggedEvent) -> bytes:
        body = logged.body
        # A token of the turn's own agent is nothing but its content; the JSON of that is sent on as it is.
        content = body[_TOKEN_START:-1] if body.startswith(_TOKEN_BODY) and body.endswith(b'"}') else b""
        if content and not self._questions and (prefix := self._voices.answering) and content != _EMPTY:
            self._said += 1
            return b"id: %d\ndata: %b%b}\n\n" % (self._said, prefix, content)
        events = self._go_on() if self._questions and not body.startswith(_WAITING_BODIES) else []
        if content:
            events += self._token(logged.position, content)
        else:
            event = logged.event
            if isinstance(event, RestartEvent):
                raise RestartedError(event.from_position)
            events += self._say(logged, event)
        frames = numbered(events, self._said)
        self._said += len(events)
        return frames

    def pause(self) -> bytes:
        return numbered(self._interrupted(), self._said) if self._questions else b""

    def _say(self, logged: LoggedEvent, event: Event) -> Told:
        position, path = logged.position, event.agent_path
        match event:
            case SessionEvent():
                return self._begin(event)
            case TokenEvent():
                return self._speak(path, event.content, position, thinks=False)
            case ReasoningEvent():
                return self._speak(path, event.content, position, thinks=True)
            case StatusEvent():
                # What is no message may stand in the middle of one.
                return self._custom(logged, "turnwire.status")
            case HandoffEvent():
                return self._voices.end(path) + self._custom(logged, "turnwire.handoff") + self._hand_over(event)
            case SearchEvent() | ReviewEvent():
                begun = self._voices.end(path) + self._attend(path, position)
                agent = self._crew.id_of(path)
                return [*begun, self._activities.tell(self._turn_id, event, position, agent)]
            case CitationEvent():
                return self._custom(logged, "turnwire.citation")
            case CustomEvent():
                return [*self._attend(path, position), custom(own_name(event.name), event.data, self._crew.id_of(path))]
            case ToolCallEvent():
                return [] if self._calls.is_open(event.call_id) else self._call(event, event.args, position)
            case ToolProgressEvent():
                return self._progress(event, position)
            case ToolResultEvent():
                return self._result(event, position)
            case ApprovalRequestEvent():
                return self._ask(event, position)
            case ApprovalResponseEvent():
                call = self._calls.id_of(event.call_id)
                return self._go_on() if self._questions and self._questions.decide(event, call) else []
            case UsageEvent():
                self._spent.add(event)
                return []
            case ErrorEvent():
                self._error = event
                return []
            case ResponseEvent():
                self._response = event
                return []
            case DoneEvent():
                return self._end(event, position)
            case MessageEvent() | RestartEvent():
                return []
            case _:
                assert_never(event)

    # Runs

    def _begin(self, event: SessionEvent) -> Told:
        self._turn_id, self._agent = event.turn_id, event.agent
        return self._runs.begin(event.session_id, event.turn_id, event.agent)

    def _interrupted(self) -> Told:
        """How the run ends that waits for a person. Asking changes nothing."""
        ended = [*self._voices.ended(), *self._crew.ended(self._questions.ids)]
        ended.append(told("STEP_FINISHED", stepName=self._agent))
        return [*ended, run_interrupted(self._runs.names, self._questions.interrupts, self._spent.told())]

    def _go_on(self) -> Told:
        """The end of the run that has waited, and the start of the next one."""
        ended, decided = self._interrupted(), self._questions.decided
        self._forget()
        self._questions, self._spent = Questions(), RunUsage()
        return ended + self._runs.next(self._agent) + decided

    def _end(self, done: DoneEvent, position: int) -> Told:
        ended = self._voices.ended()
        for call, path in self._calls.unanswered():
            ended += self._attend(path, position)
            ended.append(unanswered(call, self._crew.id_of(path)))
        ended += [*self._crew.ended(), told("STEP_FINISHED", stepName=self._agent)]
        self._forget()
        last = run_ended(self._runs.names, self._version, done, self._error, self._response, self._spent.told())
        return [*ended, last]

    def _forget(self) -> None:
        self._voices.forget()
        self._crew.forget()
        self._parents.clear()

    # What agents do

    def _attend(self, path: Path, position: int) -> Told:
        """Sub-agents that have not been told of."""
        return self._crew.begin(path, self._turn_id, position) if self._version else []

    def _token(self, position: int, content: bytes) -> Told:
        if content == _EMPTY:
            return []
        begun = [] if self._voices.answering else self._open((), position, thinks=False)
        return [*begun, b"%b%b}" % (self._voices.answering, content)]

    def _speak(self, path: Path, content: str, position: int, *, thinks: bool) -> Told:
        if not content:
            return []  # Clients before 1.0 refuse a piece that is empty.
        if path and not self._version:
            kind = "reasoning" if thinks else "text"
            return [custom("turnwire.agent", {"agent_path": path, "kind": kind, "delta": content})]
        begun: Told = []
        if self._voices.prefix(path, thinks=thinks) is None:
            begun = self._attend(path, position) + self._open(path, position, thinks=thinks)
        return [*begun, self._voices.say(path, content, thinks=thinks)]

    def _open(self, path: Path, position: int, *, thinks: bool) -> Told:
        message_id = f"{self._turn_id}:{'reasoning' if thinks else 'text'}-{position}"
        self._parents.pop(path, None)
        if not thinks:
            self._parents[path] = message_id
        return self._voices.begin(path, message_id, self._crew.id_of(path), thinks=thinks)

    def _call(self, event: ToolCallEvent | ApprovalRequestEvent | ToolResultEvent, args: Any, position: int) -> Told:
        path = event.agent_path
        begun = self._voices.end(path) + self._attend(path, position)
        # Calls with no text between them are of one message.
        parent = self._parents.setdefault(path, f"{self._turn_id}:calls-{position}")
        agent = self._crew.id_of(path)
        call = self._calls.name(self._turn_id, event.call_id, path, position)
        return begun + call_events(call, event.tool, args, parent, agent)

    def _progress(self, event: ToolProgressEvent, position: int) -> Told:
        call = self._calls.id_of(event.call_id)
        if call is None or not self._calls.is_open(event.call_id):
            return []
        value = known(toolCallId=call, text=event.text, fraction=event.fraction, data=event.data)
        begun = self._attend(event.agent_path, position)
        return [*begun, custom("turnwire.tool_progress", value, self._crew.id_of(event.agent_path))]

    def _result(self, event: ToolResultEvent, position: int) -> Told:
        path = event.agent_path
        begun = self._voices.end(path) + self._attend(path, position)
        if self._calls.id_of(event.call_id) is None:
            begun += self._call(event, {}, position)
        self._parents.pop(path, None)
        message_id, call = f"{self._turn_id}:result-{position}", self._calls.end(event.call_id)
        content = result_text(event.success, event.result)
        return [*begun, result_event(message_id, call, content, self._crew.id_of(path))]

    def _ask(self, event: ApprovalRequestEvent, position: int) -> Told:
        path = event.agent_path
        called = [] if self._calls.is_open(event.call_id) else self._call(event, event.args, position)
        begun = self._voices.end(path) + self._attend(path, position)
        own_id, call = interrupt_id(self._turn_id, position), self._calls.id_of(event.call_id) or ""
        self._questions.ask(own_id, event, call, self._crew.id_of(path))
        return called + begun

    def _hand_over(self, event: HandoffEvent) -> Told:
        """The turn's own agent is a step of the run; a sub-agent's is its own affair."""
        if event.agent_path:
            return []
        before, self._agent = self._agent, event.agent
        return [told("STEP_FINISHED", stepName=before), told("STEP_STARTED", stepName=event.agent)]

    def _custom(self, logged: LoggedEvent, name: str) -> Told:
        """The event as the log has it."""
        begun = self._attend(logged.agent_path, logged.position)
        return [*begun, custom(name, Raw(logged.body), self._crew.id_of(logged.agent_path))]


# The wire itself: whose names a run goes by, and which version of the client it is written for.


VERSIONS = (0, 1)
_NAME = re.compile(r"[A-Za-z0-9._:@-]{0,160}")


class AgUi:
    name = "ag_ui"
    media_type = "text/event-stream"
    keeps_state = True
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, thread_id: str = "", run_ids: Sequence[str] = (), version: int = 1) -> None:
        """`run_ids` are the client's names of a turn's runs, in order; an empty one is left to us.

        Raises ValueError.
        """
        if not all(_NAME.fullmatch(name) for name in (thread_id, *run_ids)):
            raise ValueError("thread_id, run_id: at most 160 letters, digits and . _ : @ -")
        if version not in VERSIONS:
            raise ValueError("version: 0 or 1")
        self.thread_id = thread_id
        self.run_ids = tuple(run_ids)
        self.version = version
        self.key = f"ag_ui?version={version}&thread_id={thread_id}&run_ids={','.join(self.run_ids)}"

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Raises ValueError."""
        version = {"0": 0, "1": 1}.get(query.get("version", "1"), -1)
        run_id = query.get("run_id")
        return cls(query.get("thread_id", ""), (run_id,) if run_id else (), version)

    def encoder(self) -> Encoder:
        return RunEncoder(self.thread_id, self.run_ids, self.version)

    def control(self, control: Control) -> None:
        """The protocol has no words for it: the connection is broken, and the client comes back for the rest."""
