"""The log of a recording, as a replay compares it: which events the agent must write again, and which it must not.

Turnwire itself writes some events, and others came out of calls that are answered from the journal. All others must
come from the agent again, where parallel work may come in another order.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from turnwire.core.journal.turn_journal import APPROVAL, RecordedCall
from turnwire.core.log.codec import LoggedEvent, comparable
from turnwire.core.log.event_kinds import TOOL_STEPS, WRITTEN_BY_TURNWIRE
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ReplyEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.state import fold_events
from turnwire.core.run.recovery import MOVING_ON, OUTCOME_UNKNOWN
from turnwire.recordings.recording import TurnRecording


class RecordedLog:
    """The events of a recording: those that the agent must write again, and those that came out of its calls.

    Text is compared as text: an agent may cut it differently.
    """

    def __init__(self, recording: TurnRecording, calls: Sequence[RecordedCall]) -> None:
        self.fold = fold_events(recording.events)
        self._events = recording.events
        self._calls = calls
        self._has_models = any(call.entry.kind == "model" for call in calls)
        # The calls about which the agent has waited for a decision in its middle, as for the reply to a question.
        self._awaited = {(call.entry.args or {}).get("call_id") for call in calls if call.entry.names == (APPROVAL,)}
        self._unmet: dict[int, LoggedEvent] = {}
        self._positions: defaultdict[bytes, deque[int]] = defaultdict(deque)
        self._texts: defaultdict[tuple[str, ...], deque[int]] = defaultdict(deque)
        self._offsets: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._outputs: defaultdict[int, list[LoggedEvent]] = defaultdict(list)
        self._answered: defaultdict[bytes, int] = defaultdict(int)
        first_call = min((call.since for call in calls), default=len(recording.events))
        for logged in recording.events:
            if self._is_written_by_turnwire(logged, first_call):
                continue
            owner = self._owner(logged)
            if owner is not None:
                self._outputs[id(owner)].append(logged)
                continue
            self._unmet[logged.position] = logged
            if isinstance(logged.event, TokenEvent):
                self._texts[logged.event.agent_path].append(logged.position)
            else:
                self._positions[comparable(logged.event)].append(logged.position)

    def _is_written_by_turnwire(self, logged: LoggedEvent, first_call: int) -> bool:
        event = logged.event
        if self.fold.restarts.is_void(logged.position):
            return True
        match event:
            case ApprovalRequestEvent():
                return event.reason == OUTCOME_UNKNOWN or event.call_id in self._awaited
            case ToolCallEvent() | ToolResultEvent() if self.fold.requests.client_calls.get(event.call_id) is not None:
                return True
            case StatusEvent():
                return event.text == MOVING_ON or logged.position <= first_call
            case UsageEvent():
                return logged.position <= first_call  # Of a summary of the history.
            case _:
                return isinstance(event, WRITTEN_BY_TURNWIRE)

    def _owner(self, logged: LoggedEvent) -> RecordedCall | None:
        """Return the call that an event came out of, if the agent does not write it again when that is answered."""
        event, path = logged.event, logged.event.agent_path
        spans = [call for call in self._calls if _is_within(logged.position, call)]
        if not isinstance(event, ApprovalRequestEvent):
            for call in spans:
                if call.entry.kind == "model" and call.entry.agent_path == path:
                    return call
        for call in spans:
            own = call.entry.agent_path
            if call.entry.kind != "tool" or path[: len(own)] != own:
                continue
            if len(path) > len(own):
                return call
            is_own_text = isinstance(event, TokenEvent) and not self._has_models
            if not (isinstance(event, (*TOOL_STEPS, ApprovalRequestEvent)) or is_own_text):
                return call
        return None

    def take(self, key: bytes) -> LoggedEvent | None:
        """Return the first event that equals this one and was not met before."""
        positions = self._positions.get(key)
        return self._unmet.pop(positions.popleft()) if positions else None

    def was_answered(self, key: bytes) -> bool:
        """Return True, once, for an event that came out of a call that was answered."""
        if self._answered[key] <= 0:
            return False
        self._answered[key] -= 1
        return True

    def next_text(self, path: tuple[str, ...]) -> tuple[LoggedEvent, str] | tuple[None, str]:
        """Return the recorded piece of text that comes next, and what is left of it."""
        if not self._texts[path]:
            return None, ""
        logged = self._unmet[self._texts[path][0]]
        assert isinstance(logged.event, TokenEvent)
        return logged, logged.event.content[self._offsets[path] :]

    def advance(self, path: tuple[str, ...], length: int) -> None:
        logged, rest = self.next_text(path)
        if logged is not None and length == len(rest):
            del self._unmet[self._texts[path].popleft()]
            self._offsets[path] = 0
        else:
            self._offsets[path] += length

    def answer(self, call: RecordedCall) -> list[LoggedEvent]:
        """Return what came out of a call, which is now answered."""
        events = self._outputs.pop(id(call), [])
        for logged in events:
            self._answered[comparable(logged.event)] += 1
        return events

    def find(self, kind: type[Any], call_id: str) -> LoggedEvent | None:
        """Return the last valid event of this kind about a call."""
        for logged in reversed(self._events):
            if isinstance(logged.event, kind) and getattr(logged.event, "call_id", "") == call_id:
                return None if self.fold.restarts.is_void(logged.position) else logged
        return None

    def find_reply(self, question_id: str) -> LoggedEvent | None:
        """Return the reply to a question."""
        replies = (logged for logged in self._events if isinstance(logged.event, ReplyEvent))
        return next((logged for logged in replies if logged.event == self.fold.requests.replies.get(question_id)), None)

    def first_unmet(self, *, path: tuple[str, ...] | None = None, before: int | None = None) -> LoggedEvent | None:
        """Return the first event that the agent has not written again, of one agent path or of all."""
        for position, logged in self._unmet.items():
            if before is not None and position >= before:
                return None
            if path is None or logged.event.agent_path == path:
                return logged
        return None


def _is_within(position: int, call: RecordedCall) -> bool:
    return call.since < position and (not call.is_finished or position <= call.position)
