"""`ai_sdk`: a log as chunks of a UI message stream.

A step of the protocol is one answer of the model with the tools it calls, so whatever follows ended tools begins a new
step. A client looks at the last step to see whether it must send something by itself: if that step held calls that have
ended, the client would send requests without end.
"""

from collections.abc import Mapping
from typing import Any, Self, assert_never, cast

from turnwire.core.contracts.wires import Encoder
from turnwire.core.errors import RestartedError
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
from turnwire.core.log.state import TurnFold
from turnwire.wires.ai_sdk.frames import (
    FINISH_STEP,
    START_STEP,
    ChatToolCalls,
    SubAgentTexts,
    chunk,
    event_part,
    finish,
    metadata_chunk,
    outcome_chunks,
    source_chunk,
)
from turnwire.wires.frames import BaseEncoder, StatefulWire, answer_json, answer_text, omit_none
from turnwire.wires.turn_view import AnswerEvent, OpenText, OpenTexts, OpenWaits, TurnView

VERSIONS = (5, 6, 7)
_RESERVED_PARTS = frozenset({"status", "handoff", "search", "review", "citation", "approval", "agent", "agent-delta"})
"""The data parts that an application's own event must not pass for."""


class AiSdk(StatefulWire):
    """The wire for one version of the SDK's clients."""

    name = "ai_sdk"
    media_type = "text/event-stream"
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, sdk_version: int = 6) -> None:
        """Raise ValueError for an unknown version."""
        if sdk_version not in VERSIONS:
            raise ValueError("sdk_version: 5, 6 or 7")
        self.sdk_version = sdk_version
        self.key = f"ai_sdk?sdk_version={sdk_version}"

    @classmethod
    def of_query(cls, query: Mapping[str, str], default: int = 6) -> Self:
        version = query.get("sdk_version", str(default))
        return cls(int(version) if version.isascii() and version.isdecimal() and len(version) == 1 else 0)

    def encoder(self) -> Encoder:
        return ChatEncoder(self.sdk_version)


class ChatEncoder:
    takes_heartbeat = True

    def __init__(self, version: int) -> None:
        self._fold = TurnFold()
        self._calls = ChatToolCalls(version)
        self._subagent_texts = SubAgentTexts()
        self._turn = TurnView()
        self._texts = OpenTexts()
        self._waits = OpenWaits[bytes]()
        self._start = b""
        self._has_text = False
        self._sources: set[int] = set()

    def frame(self, logged: LoggedEvent) -> bytes:
        content = answer_json(logged.body)
        if content and not self._waits and (prefix := self._texts.answer_prefix):
            return b"%b%b}\n\n" % (prefix, content)
        resumed = self._resume() if self._waits.end_at(logged) else b""
        return resumed + (self._token(logged, content) if content else self._event(logged))

    def pause(self) -> bytes:
        return finish("tool-calls") if self._waits else b""

    def _event(self, logged: LoggedEvent) -> bytes:
        event, position = self._turn.read(logged), logged.position
        if not isinstance(event, TokenEvent | ReasoningEvent):
            self._fold.add(logged)
        match event:
            case SessionEvent():
                metadata = {"turnId": event.turn_id, "sessionId": event.session_id, "agent": event.agent}
                self._start = chunk("start", {"messageId": event.turn_id, "messageMetadata": metadata}) + START_STEP
                return self._start
            case TokenEvent() | ReasoningEvent() if event.agent_path:
                return self._subagent_texts.add(event, position)
            case ReasoningEvent():
                return self._text(ascii_json(event.content), position, is_reasoning=True) if event.content else b""
            case StatusEvent():
                return event_part(logged, "status", transient=True)
            case HandoffEvent():
                return self._close() + event_part(logged, "handoff", f"handoff-{position}")
            case InputEvent():
                return self._close() + event_part(logged, "input", f"input-{position}")
            case QuestionEvent():
                self._waits.begin(event)
                return self._close() + self._own_step() + self._calls.ask(event)
            case ReplyEvent():
                return self._answer(event, self._calls.reply(event))
            case SearchEvent():
                return self._close() + event_part(logged, "search", _step_id(event))
            case ReviewEvent():
                return self._close() + event_part(logged, "review", _step_id(event))
            case CustomEvent():
                return self._close() + _custom_part(event)
            case CitationEvent():
                # The text stays open: a citation may come in the middle of a sentence.
                return self._source(event) + event_part(logged, "citation", f"citation-{position}")
            case ToolCallEvent():
                if self._calls.is_open(event.call_id):
                    return b""
                self._waits.begin(event)
                own_step = self._close() + self._own_step() if event.runs_on == "client" else b""
                return own_step + self._call(event, position)
            case ToolProgressEvent():
                return self._calls.progress(event)
            case ToolResultEvent():
                return self._close() + self._answer(event, self._calls.result(event, position))
            case ApprovalRequestEvent():
                self._waits.begin(event)
                called = b"" if self._calls.is_open_in_step(event.call_id) else self._call(event, position)
                return called + self._close() + self._calls.request(event)
            case ApprovalResponseEvent():
                return self._answer(event, self._calls.decide(event))
            case DoneEvent():
                return self._end(event)
            case TokenEvent() | MessageEvent() | UsageEvent() | ErrorEvent() | ResponseEvent() | RestartEvent():
                return b""
            case _:
                assert_never(event)

    # Texts

    def _token(self, logged: LoggedEvent, content: bytes) -> bytes:
        if not self._has_text:
            # The fold needs the time when the answer began, not its text.
            self._has_text = True
            self._fold.add_token("", logged.position, logged.at)
        return self._text(content, logged.position, is_reasoning=False)

    def _text(self, content: bytes, position: int, *, is_reasoning: bool) -> bytes:
        """Return a piece of a text, which is encoded as JSON, after the start of the text if it is new."""
        started, text = b"", self._texts.find((), is_reasoning=is_reasoning)
        if text is None:
            kind = "reasoning" if is_reasoning else "text"
            name = f"{kind}-{position}"
            started = self._close() + self._next_step() + chunk(f"{kind}-start", {"id": name})
            prefix = chunk(f"{kind}-delta", {"id": name}).removesuffix(b"}\n\n") + b',"delta":'
            text = OpenText(name, is_reasoning, prefix)
            self._texts.start((), text)
        return b"%b%b%b}\n\n" % (started, text.prefix, content)

    def _close(self) -> bytes:
        """End every open text, because another part follows."""
        closed, text = self._subagent_texts.close(), self._texts.end(())
        if text is None:
            return closed
        return closed + chunk("reasoning-end" if text.is_reasoning else "text-end", {"id": text.id})

    def _source(self, citation: CitationEvent) -> bytes:
        if citation.index in self._sources:
            return b""
        self._sources.add(citation.index)
        return source_chunk(citation)

    # Tool calls and approvals

    def _call(self, event: ToolCallEvent | ApprovalRequestEvent, position: int) -> bytes:
        return self._close() + self._next_step() + self._calls.call(event, event.args, position)

    def _next_step(self) -> bytes:
        if not self._calls.are_settled:
            return b""
        self._calls.in_step.clear()
        return FINISH_STEP + START_STEP

    def _own_step(self) -> bytes:
        """Begin a step for what the client answers, because a client waits until everything in the step has ended."""
        if not self._calls.needs_own_step:
            return b""
        self._calls.in_step.clear()
        return FINISH_STEP + START_STEP

    def _answer(self, event: AnswerEvent, chunks: bytes) -> bytes:
        """Keep the chunks of an answer until the last one that the turn waits for, with which it continues."""
        if not self._waits:
            return chunks
        return self._resume() if self._waits.answer(event, chunks) else b""

    def _resume(self) -> bytes:
        """Start the message again after a pause, with every answer that was given meanwhile."""
        paused = self.pause()
        self._calls.in_step.clear()
        return paused + self._start + b"".join(self._waits.end())

    def _end(self, done: DoneEvent) -> bytes:
        state = self._fold.state()
        ended = self._close() + self._calls.close_all() + self._next_step()
        return ended + metadata_chunk(done, state, self._turn.response) + outcome_chunks(done, state)


def _step_id(event: SearchEvent | ReviewEvent) -> str:
    return "/".join((*event.agent_path, event.step_id))


def _custom_part(event: CustomEvent) -> bytes:
    """Return an application's event as a data part; data with an `id` replaces the part of the same id."""
    name = f"custom-{event.name}" if event.name in _RESERVED_PARTS else event.name
    data: Any = event.data
    part_id = cast("dict[str, Any]", data).get("id") if isinstance(data, dict) else None
    return chunk(f"data-{name}", {**omit_none(id=part_id if isinstance(part_id, str) else None), "data": event.data})


class AnswerText(StatefulWire):
    """The answer's text and nothing else, as the SDK's `TextStreamChatTransport` reads it."""

    name = key = "answer_text"
    media_type = "text/plain; charset=utf-8"
    heartbeat = b""

    def encoder(self) -> Encoder:
        return _AnswerEncoder()


class _AnswerEncoder(BaseEncoder):
    takes_heartbeat = False

    def frame(self, logged: LoggedEvent) -> bytes:
        if logged.type == "restart":
            assert isinstance(logged.event, RestartEvent)
            raise RestartedError(logged.event.from_position)
        return answer_text(logged.body).encode()
