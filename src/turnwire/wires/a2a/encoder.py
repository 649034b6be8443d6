"""`a2a`: a turn as the stream of an A2A task.

The stream begins with the task. Tokens are pieces of the artifact `answer`; every other event is an update of the
status, with a line of text for steps, and with the event itself as metadata. A turn that waits for a person ends the
stream with `input-required`. Each frame has its number as its id, by which a client can resume exactly.
"""

from collections.abc import Mapping
from typing import Any, Self

from msgspec import Raw

from turnwire.core.contracts.wires import Encoder
from turnwire.core.log.codec import LoggedEvent, ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    DoneEvent,
    ErrorEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.wires.a2a.frames import (
    INPUT_REQUIRED,
    OUTCOME_STATES,
    VERSIONS,
    WORKING,
    TaskIds,
    TaskInput,
    Version,
    agent_message,
    artifact_update,
    event_metadata,
    input_message,
    joined_text,
    new_task,
    response_json,
    status,
    status_update,
    text_part,
)
from turnwire.wires.frames import (
    TOKEN_BODY,
    TURN_FAILED,
    StatefulWire,
    answer_json,
    frame,
)
from turnwire.wires.progress import step_line
from turnwire.wires.turn_view import AnswerEvent, OpenWaits, ReportEvent, TurnView, WaitEvent

_StepEvent = ReportEvent | WaitEvent | AnswerEvent | MessageEvent | ReasoningEvent | CitationEvent | UsageEvent
_MARK = "\x00"  # The log removes control characters, so no text contains it.


class A2a(StatefulWire):
    """The wire for one version of the protocol.

    `request_id` is the id of a JSON-RPC request as JSON, which every event of its stream repeats; without it the
    events are those of the REST binding. `names` are the client's own names for the context and the message.
    """

    name = "a2a"
    media_type = "text/event-stream"
    numbers_frames = True

    def __init__(self, version: Version = "1.0", request_id: bytes | None = None, names: TaskIds | None = None) -> None:
        self.version: Version = version
        self.request_id = request_id
        self.names = names
        self.key = f"a2a?version={version}&request_id={request_id!r}&names={names!r}"

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        version = VERSIONS.get(query.get("version", "1.0"))
        if version is None:
            raise ValueError(f"version: {' or '.join(VERSIONS)}")
        return cls(version)

    def encoder(self) -> Encoder:
        return TaskEncoder(self)

    def event(self, response: dict[str, Any]) -> bytes:
        """Return an event of a stream, as JSON."""
        return response_json(response, self.version, self.request_id)


class TaskEncoder:
    takes_heartbeat = True

    def __init__(self, wire: A2a) -> None:
        self._wire = wire
        self._sent = 0
        self._ids = TaskIds("", "")
        self._answer_prefix = self._answer_suffix = b""
        self._has_answer = False
        self._turn = TurnView()
        self._waits = OpenWaits[tuple[LoggedEvent, AnswerEvent]]()
        self._requests: list[WaitEvent] = []
        self._position = self._at = 0

    def frame(self, logged: LoggedEvent) -> bytes:
        resumed = self._continue() if self._waits.end_at(logged) else b""
        if logged.body.startswith(TOKEN_BODY):
            return resumed + self._token(answer_json(logged.body))
        return resumed + self._event(logged)

    def _token(self, content: bytes) -> bytes:
        if not content:
            return b""
        if not self._has_answer:
            self._has_answer = True
            return self._send(artifact_update(self._ids, Raw(content), append=False))
        # Nearly every event is a token, so all but its text is encoded once.
        self._sent += 1
        return b"id: %d\ndata: %b%b%b\n\n" % (self._sent, self._answer_prefix, content, self._answer_suffix)

    def pause(self) -> bytes:
        if not self._waits:
            return b""
        needed = input_message(self._ids, self._position, TaskInput.of_events(self._requests))
        body = self._wire.event(status_update(self._ids, status(INPUT_REQUIRED, self._at, needed)))
        return frame(body, b"%d" % (self._sent + 1))

    def _continue(self) -> bytes:
        """Return the end of the wait, and the answers that ended it."""
        ended = self.pause()
        self._sent += 1
        self._requests = []
        return ended + b"".join(self._step(logged, event) for logged, event in self._waits.end())

    def _event(self, logged: LoggedEvent) -> bytes:
        event = self._turn.read(logged)
        match event:
            case SessionEvent():
                self._begin(event)
                return b""
            case MessageEvent() if logged.position == 2:
                return self._send({"task": new_task(self._ids, self._turn.agent, event.content, logged.at)})
            case ApprovalRequestEvent() | QuestionEvent() | ToolCallEvent():
                return self._wait(logged, event)
            case ApprovalResponseEvent() | ReplyEvent() | ToolResultEvent():
                return self._answer(logged, event)
            case ResponseEvent():
                if not self._has_answer:
                    return b""
                return self._send(artifact_update(self._ids, "", append=True, last=True, citations=event.citations))
            case DoneEvent():
                return self._end(logged, event)
            case TokenEvent() | ErrorEvent() | RestartEvent():
                return b""
            case ReasoningEvent() if event.agent_path:
                return b""
            case _:
                return self._step(logged, event)

    def _begin(self, event: SessionEvent) -> None:
        known = self._wire.names
        context_id, message_id = (known.context_id, known.message_id) if known else (event.session_id, "")
        self._ids = TaskIds(event.turn_id, context_id, message_id)
        piece = self._wire.event(artifact_update(self._ids, _MARK, append=True))
        self._answer_prefix, _, self._answer_suffix = piece.partition(ascii_json(_MARK))

    def _send(self, response: dict[str, Any]) -> bytes:
        self._sent += 1
        return frame(self._wire.event(response), b"%d" % self._sent)

    def _step(self, logged: LoggedEvent, event: _StepEvent) -> bytes:
        """Return an update of the status with the event, and with a line of text if there is one."""
        line = step_line(event)
        note = agent_message(self._ids, logged.position, text_part(line)) if line else None
        metadata = event_metadata(logged.body)
        return self._send(status_update(self._ids, status(WORKING, logged.at, note), metadata))

    def _wait(self, logged: LoggedEvent, event: WaitEvent) -> bytes:
        """Note what the task waits for; a call that the server runs is a step like any other."""
        if not isinstance(event, ToolCallEvent) or event.runs_on == "client":
            self._waits.begin(event)
            self._requests.append(event)
            self._position, self._at = logged.position, logged.at
        return self._step(logged, event)

    def _answer(self, logged: LoggedEvent, event: AnswerEvent) -> bytes:
        """Keep an answer until the last one has come, so that the end of the wait is sent before all answers."""
        if not self._waits:
            return self._step(logged, event)
        return self._continue() if self._waits.answer(event, (logged, event)) else b""

    def _end(self, logged: LoggedEvent, event: DoneEvent) -> bytes:
        text = ""
        if event.outcome in ("failed", "interrupted"):
            error = self._turn.error
            text = error.error if error else TURN_FAILED
        elif event.joined is not None:
            text = joined_text(event.joined.turn_id)
        note = agent_message(self._ids, logged.position, text_part(text)) if text else None
        ended = status(OUTCOME_STATES[event.outcome], logged.at, note)
        return self._send(status_update(self._ids, ended, event_metadata(logged.body)))
