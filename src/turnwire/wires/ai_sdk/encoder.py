"""From a log to chunks.

A step of the protocol is one answer of the model with the tools it calls; so what comes after tools have ended begins
a new one. Clients look at the last step to see whether they have to send something by themselves: it must not hold
calls that have ended, or they ask again without end.
"""

from collections.abc import Mapping
from typing import Any, Self, assert_never, cast

from turnwire.core.codec import LoggedEvent, decode_event
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
from turnwire.core.state import TurnFold
from turnwire.wires.ai_sdk.frames import (
    FINISH_STEP,
    START_STEP,
    ChatToolCalls,
    SubAgentTexts,
    chunk,
    event_part,
    finish,
    known,
    last_words,
    metadata_chunk,
    source_chunk,
)

_TOKEN_BODY = b'{"type":"token","content":'
# A turn waits until everything is decided that it has asked about; anything else means that it has gone on.
_WAITING_BODIES = b'{"type":"tool_call"', b'{"type":"approval_re'
_OWN_NAMES = frozenset({"status", "handoff", "search", "review", "citation", "approval", "agent", "agent-delta"})
"""Data parts that an application's own event must not be taken for."""


class ChatEncoder:
    takes_heartbeat = True

    def __init__(self, version: int) -> None:
        self._fold = TurnFold()
        self._calls = ChatToolCalls(version)
        self._asides = SubAgentTexts()
        self._start = b""
        self._text = b""
        self._reasoning = b""
        self._has_text = False
        self._undecided: set[str] = set()
        self._decided = b""
        self._sources: set[int] = set()
        self._response: ResponseEvent | None = None

    def frame(self, logged: LoggedEvent) -> bytes:
        body = logged.body
        resumed = b""
        if self._undecided and not body.startswith(_WAITING_BODIES):
            resumed = self._resume()
        # A token of the turn's own agent is nothing but its content; the JSON of that is sent on as it is.
        if body.startswith(_TOKEN_BODY) and body.endswith(b'"}'):
            return resumed + self._token(logged, body[len(_TOKEN_BODY) : -1])
        event = logged.event
        if isinstance(event, RestartEvent):
            raise RestartedError(event.from_position)
        if not isinstance(event, TokenEvent | ReasoningEvent):
            self._fold.add(logged)
        return resumed + self._say(logged, event)

    def pause(self) -> bytes:
        return finish("tool-calls") if self._undecided else b""

    def _resume(self) -> bytes:
        """The message goes on; a client finds there what was decided, also while there was more to decide."""
        resumed = self.pause() + self._start + self._decided
        self._undecided, self._decided = set(), b""
        self._calls.in_step.clear()
        return resumed

    def _decide(self, event: ApprovalResponseEvent) -> bytes:
        if not self._undecided:
            return self._calls.decide(event)
        self._decided += self._calls.decide(event)
        if self._undecided != {event.call_id}:
            self._undecided.discard(event.call_id)
            return b""
        return self._resume()

    def _say(self, logged: LoggedEvent, event: Event) -> bytes:
        position = logged.position
        match event:
            case SessionEvent():
                return self._begin(event)
            case TokenEvent() | ReasoningEvent():
                return self._asides.say(event, position) if event.agent_path else self._reason(event, position)
            case StatusEvent():
                return event_part(logged, "status", transient=True)
            case HandoffEvent():
                return self._close() + event_part(logged, "handoff", f"handoff-{position}")
            case SearchEvent():
                return self._close() + event_part(logged, "search", _step_id(event))
            case ReviewEvent():
                return self._close() + event_part(logged, "review", _step_id(event))
            case CustomEvent():
                return self._close() + _custom_part(event)
            case CitationEvent():
                # It may stand in the middle of a sentence, so the text stays open.
                return self._source(event) + event_part(logged, "citation", f"citation-{position}")
            case ToolCallEvent():
                return b"" if self._calls.is_open(event.call_id) else self._call(event, position)
            case ToolProgressEvent():
                return self._calls.progress(event)
            case ToolResultEvent():
                return self._close() + self._calls.result(event, position)
            case ApprovalRequestEvent():
                self._undecided.add(event.call_id)
                called = b"" if self._calls.is_at_hand(event.call_id) else self._call(event, position)
                return called + self._close() + self._calls.ask(event)
            case ApprovalResponseEvent():
                return self._decide(event)
            case ResponseEvent():
                self._response = event
                return b""
            case DoneEvent():
                return self._end(event)
            case MessageEvent() | UsageEvent() | ErrorEvent() | RestartEvent():
                return b""
            case _:
                assert_never(event)

    def _begin(self, event: SessionEvent) -> bytes:
        told = {"turnId": event.turn_id, "sessionId": event.session_id, "agent": event.agent}
        self._start = chunk("start", {"messageId": event.turn_id, "messageMetadata": told}) + START_STEP
        return self._start

    def _token(self, logged: LoggedEvent, content: bytes) -> bytes:
        if content == b'""':
            return b""
        if self._text:
            return b'data: {"type":"text-delta","id":"%b","delta":%b}\n\n' % (self._text, content)
        if not self._has_text:
            # Of the answer the fold needs only when it began.
            self._has_text = True
            self._fold.add_token("", logged.position, logged.at)
        begun = self._close() + self._next_step()
        self._text = b"text-%d" % logged.position
        return begun + b'data: {"type":"text-start","id":"%b"}\n\n' % self._text + self._token(logged, content)

    def _reason(self, event: TokenEvent | ReasoningEvent, position: int) -> bytes:
        if not event.content:
            return b""
        begun = b""
        if not self._reasoning:
            begun = self._close() + self._next_step() + chunk("reasoning-start", {"id": f"reasoning-{position}"})
            self._reasoning = b"reasoning-%d" % position
        return begun + chunk("reasoning-delta", {"id": self._reasoning.decode(), "delta": event.content})

    def _call(self, event: ToolCallEvent | ApprovalRequestEvent, position: int) -> bytes:
        return self._close() + self._next_step() + self._calls.call(event, position)

    def _source(self, citation: CitationEvent) -> bytes:
        if citation.index in self._sources:
            return b""
        self._sources.add(citation.index)
        return source_chunk(citation)

    def _next_step(self) -> bytes:
        if not self._calls.are_settled:
            return b""
        self._calls.in_step.clear()
        return FINISH_STEP + START_STEP

    def _close(self) -> bytes:
        """Ends the text that is being written, whoever's it is: something else comes between."""
        ended = self._asides.close()
        if self._text:
            ended += b'data: {"type":"text-end","id":"%b"}\n\n' % self._text
        if self._reasoning:
            ended += b'data: {"type":"reasoning-end","id":"%b"}\n\n' % self._reasoning
        self._text = self._reasoning = b""
        return ended

    def _end(self, done: DoneEvent) -> bytes:
        state = self._fold.state()
        ended = self._close() + self._calls.give_up() + self._next_step()
        return ended + metadata_chunk(done, state, self._response) + last_words(done, state)


def _step_id(event: SearchEvent | ReviewEvent) -> str:
    return "/".join((*event.agent_path, event.step_id))


def _custom_part(event: CustomEvent) -> bytes:
    """The application's own; what has an `id` of its own takes the place of what had it before."""
    name = f"custom-{event.name}" if event.name in _OWN_NAMES else event.name
    told: Any = event.data
    own_id = cast("dict[str, Any]", told).get("id") if isinstance(told, dict) else None
    return chunk(f"data-{name}", {**known(id=own_id if isinstance(own_id, str) else None), "data": event.data})


# The wire itself: which version of the client it writes for, and what stands around the chunks.


VERSIONS = (5, 6, 7)


class AiSdk:
    name = "ai_sdk"
    media_type = "text/event-stream"
    keeps_state = True
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, sdk_version: int = 6) -> None:
        """Raises ValueError."""
        if sdk_version not in VERSIONS:
            raise ValueError("sdk_version: 5, 6 or 7")
        self.sdk_version = sdk_version
        self.key = f"ai_sdk?sdk_version={sdk_version}"

    @classmethod
    def of_query(cls, query: Mapping[str, str], default: int = 6) -> Self:
        """Raises ValueError."""
        told = query.get("sdk_version", str(default))
        return cls(int(told) if told.isascii() and told.isdecimal() and len(told) == 1 else 0)

    def encoder(self) -> Encoder:
        return ChatEncoder(self.sdk_version)

    def control(self, control: Control) -> None:
        """The protocol has no words for it: the connection is broken, and the client comes back for a replay."""


# The answer's text and nothing else, as the SDK's `TextStreamChatTransport` reads it.


_ANSWER_TOKEN_BODY = b'{"type":"token"'
_RESTART_BODY = b'{"type":"restart"'


class AnswerText:
    name = key = "answer_text"
    media_type = "text/plain; charset=utf-8"
    keeps_state = True
    heartbeat = b""
    opening = b""

    def encoder(self) -> Encoder:
        return _AnswerEncoder()

    def control(self, control: Control) -> None:
        """There are no words for it."""


class _AnswerEncoder:
    takes_heartbeat = False

    def frame(self, logged: LoggedEvent) -> bytes:
        if logged.body.startswith(_RESTART_BODY):
            restart = decode_event(logged.body)
            assert isinstance(restart, RestartEvent)
            raise RestartedError(restart.from_position)
        if not logged.body.startswith(_ANSWER_TOKEN_BODY):
            return b""
        event = decode_event(logged.body)
        assert isinstance(event, TokenEvent)
        return b"" if event.agent_path else event.content.encode()

    def pause(self) -> bytes:
        return b""
