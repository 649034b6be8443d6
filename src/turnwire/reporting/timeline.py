"""The timeline of a turn: phases, steps, tokens and silences, computed from its log. Pure: no I/O, no clock.

Times are milliseconds after the turn was accepted.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct, field

from turnwire.core.codec import LoggedEvent
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    ReasoningEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.state import add_usage

SILENCE_MS = 1_000
"""A pause of this length counts as a silence, unless the turn was queued or waited for a person."""

PhaseName = Literal["queued", "thinking", "tools", "answering", "waiting"]
BarKind = Literal["tool", "search", "review", "wait"]
State = Literal["running", "succeeded", "failed", "void"]


class TimeSpan(Struct):
    began: int
    ended: int

    @property
    def ms(self) -> int:
        return self.ended - self.began


class Phase(TimeSpan):
    """A stretch of the turn. The phases cover the whole turn without overlap."""

    name: PhaseName


class Bar(TimeSpan):
    """A step of the turn. A `void` step was taken back by a restart."""

    kind: BarKind
    id: str
    name: str
    state: State = "running"
    agent_path: tuple[str, ...] = ()
    position: int = 0

    @property
    def label(self) -> str:
        """Return the step's name with the agents that it ran in."""
        return " › ".join([*self.agent_path, self.name])

    @property
    def is_instant(self) -> bool:
        """Return True for a review, which has a moment but no duration."""
        return self.kind == "review"

    @property
    def duration_text(self) -> str:
        return "" if self.is_instant else duration_text(self.ms)

    @property
    def style(self) -> str:
        """Return the name that a renderer looks a colour up by: a bad state, or the kind of step."""
        return self.state if self.state in ("failed", "void") else self.kind


class Mark(Struct):
    at: int
    text: str


class Tokens(Struct):
    """The tokens of the answer."""

    times: list[int] = field(default_factory=list[int])
    characters: int = 0
    reasoning: int = 0

    @property
    def count(self) -> int:
        return len(self.times)

    @property
    def per_second(self) -> float | None:
        """Return the speed of the tokens, pauses left out; None if there are too few."""
        bursts = _bursts(self.times)
        ms = sum(burst.ms for burst in bursts)
        return (self.count - len(bursts)) * 1000 / ms if ms else None


class Timeline(Struct, kw_only=True):
    """A turn's course. `length` is the time from acceptance to the last event, or to now while the turn runs."""

    turn_id: str = ""
    session_id: str = ""
    agent: str = ""
    accepted_at: int = 0
    length: int = 0
    outcome: str | None = None
    reason: str | None = None
    error: str | None = None
    events: int = 0
    first_event: int | None = None
    first_token: int | None = None
    tokens: Tokens = field(default_factory=Tokens)
    phases: list[Phase] = field(default_factory=list[Phase])
    bars: list[Bar] = field(default_factory=list[Bar])
    silences: list[TimeSpan] = field(default_factory=list[TimeSpan])
    marks: list[Mark] = field(default_factory=list[Mark])
    usage: Usage | None = None

    @property
    def status(self) -> str:
        return self.outcome or "running"

    @property
    def status_text(self) -> str:
        """Return the status with the error or reason, such as `failed (turn_timeout)`."""
        reason = self.error or self.reason
        return f"{self.status} ({reason})" if reason else self.status

    @property
    def accepted_text(self) -> str:
        return datetime.fromtimestamp(self.accepted_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def length_text(self) -> str:
        return duration_text(self.length)

    @property
    def latency_texts(self) -> list[str]:
        """Return the time to the first event and to the first token, if there are any."""
        latencies = (("first event", self.first_event), ("first token", self.first_token))
        return [f"{name} {duration_text(ms)}" for name, ms in latencies if ms is not None]

    @property
    def waits(self) -> list[Phase]:
        """Return the phases in which the turn was queued or waited for a person."""
        return [phase for phase in self.phases if phase.name in ("queued", "waiting")]

    @property
    def phase_totals(self) -> dict[str, int]:
        """Return the time in each phase, in order of appearance, without those too short to be seen."""
        totals: dict[str, int] = {}
        for phase in self.phases:
            totals[phase.name] = totals.get(phase.name, 0) + phase.ms
        return {name: ms for name, ms in totals.items() if ms * 200 >= self.length}

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Return the legend's entries: the style and the text of each."""
        entries = [(name, f"{name} {duration_text(ms)}") for name, ms in self.phase_totals.items()]
        if self.silences:
            entries.append(("silence", f"pauses of 1 s or more: {len(self.silences)}"))
        return entries


def timeline_json(line: Timeline) -> dict[str, Any]:
    """Return the timeline for programs: everything but the time of each token."""
    tokens = line.tokens
    return {
        "turn_id": line.turn_id,
        "session_id": line.session_id,
        "agent": line.agent,
        "accepted_at": line.accepted_at,
        "outcome": line.outcome,
        "reason": line.reason,
        "error": line.error,
        "events": line.events,
        "length_ms": line.length,
        "first_event_ms": line.first_event,
        "first_token_ms": line.first_token,
        "tokens": {
            "count": tokens.count,
            "characters": tokens.characters,
            "reasoning": tokens.reasoning,
            "per_second": None if tokens.per_second is None else round(tokens.per_second, 2),
        },
        "spent_ms": line.phase_totals,
        "phases": [{"name": phase.name, "began_ms": phase.began, "ended_ms": phase.ended} for phase in line.phases],
        "steps": [
            {
                "kind": bar.kind,
                "id": bar.id,
                "name": bar.name,
                "state": bar.state,
                "began_ms": bar.began,
                "ended_ms": bar.ended,
                "agent_path": list(bar.agent_path),
            }
            for bar in line.bars
        ],
        "silences": [{"began_ms": silence.began, "ended_ms": silence.ended} for silence in line.silences],
        "marks": [{"at_ms": mark.at, "text": mark.text} for mark in line.marks],
        "usage": None if line.usage is None else {name: getattr(line.usage, name) for name in Usage.__struct_fields__},
    }


def timeline_of(events: Sequence[LoggedEvent], started_at: int | None = None, now: int | None = None) -> Timeline:
    """Compute a timeline. `started_at` is when a worker claimed the turn; `now` is the end of one that still runs."""
    if not events:
        return Timeline()
    builder = _TimelineBuilder(events[0].at)
    for logged in events:
        builder.add(logged)
    return builder.build(started_at, now)


class _TimelineBuilder:
    """Folds a log into a timeline, event by event."""

    def __init__(self, accepted_at: int) -> None:
        self._line = Timeline(accepted_at=accepted_at)
        self._open: dict[tuple[str, str], Bar] = {}
        self._waits: dict[str, Bar] = {}
        self._moments: list[int] = []
        self._tokens: list[tuple[int, int]] = []
        """The position and the characters of each token of the answer."""
        self._epoch = 0
        self._was_approval = False

    def add(self, logged: LoggedEvent) -> None:
        line, at, event = self._line, logged.at - self._line.accepted_at, logged.event
        self._moments.append(at)
        line.events, line.length = logged.position, max(line.length, at)
        if logged.position > 2 and line.first_event is None:
            line.first_event = at
        if logged.epoch > self._epoch:
            # A turn that waited for approval is claimed again after each decision; that is no takeover.
            if self._epoch and not self._was_approval:
                line.marks.append(Mark(at, "taken over by another worker"))
            self._epoch = logged.epoch
        self._was_approval = isinstance(event, ApprovalRequestEvent | ApprovalResponseEvent)
        match event:
            case SessionEvent():
                line.turn_id, line.session_id, line.agent = event.turn_id, event.session_id, event.agent
            case TokenEvent() if not event.agent_path:
                line.tokens.times.append(at)
                self._tokens.append((logged.position, len(event.content)))
            case ReasoningEvent():
                line.tokens.reasoning += 1
            case ToolCallEvent():
                self._begin("tool", event.call_id, event.tool, logged, at)
            case ToolResultEvent():
                self._end("tool", event.call_id, event.tool, logged, at, event.success, event.ms)
            case SearchEvent(phase="started"):
                self._begin("search", event.step_id, event.tool, logged, at)
            case SearchEvent():
                self._end("search", event.step_id, event.tool, logged, at, event.phase == "finished", event.ms)
            case ReviewEvent():
                name = f"review: {event.verdict}"
                self._begin("review", event.step_id, name, logged, at).state = "succeeded"
            case ApprovalRequestEvent():
                wait = Bar(at, at, "wait", event.call_id, f"a person: {event.tool}", agent_path=event.agent_path)
                self._waits[event.call_id] = wait
                # The call is logged before the decision but runs after it, so its bar starts then.
                called = self._open.get(("tool", event.call_id))
                line.bars = [*(bar for bar in line.bars if bar is not called), wait]
            case ApprovalResponseEvent():
                if wait := self._waits.pop(event.call_id, None):
                    wait.ended, wait.state = at, "succeeded" if event.approved else "failed"
                if called := self._open.get(("tool", event.call_id)):
                    called.began = called.ended = at
                    line.bars.append(called)
            case HandoffEvent():
                line.marks.append(Mark(at, f"handed to {event.agent}"))
            case RestartEvent():
                self._restart(event, at)
            case UsageEvent():
                line.usage = add_usage(line.usage, event)
            case ErrorEvent():
                line.error = event.code
            case DoneEvent():
                line.outcome, line.reason = event.outcome, event.reason
            case _:
                pass

    def _begin(self, kind: BarKind, step_id: str, name: str, logged: LoggedEvent, at: int) -> Bar:
        bar = Bar(at, at, kind, step_id, name, agent_path=logged.agent_path, position=logged.position)
        self._open[kind, step_id] = bar
        self._line.bars.append(bar)
        return bar

    def _end(
        self, kind: BarKind, step_id: str, name: str, logged: LoggedEvent, at: int, success: bool, ms: float | None
    ) -> None:
        bar = self._open.pop((kind, step_id), None)
        if bar is None:
            bar = self._begin(kind, step_id, name, logged, max(at - int(ms or 0), 0))
            del self._open[kind, step_id]
        bar.ended, bar.state = at, "succeeded" if success else "failed"

    def _restart(self, event: RestartEvent, at: int) -> None:
        count = sum(position <= event.from_position for position, _ in self._tokens)
        del self._line.tokens.times[count:], self._tokens[count:]
        for bar in self._line.bars:
            if bar.position > event.from_position or bar.state == "running":
                bar.ended, bar.state = max(bar.ended, bar.began), "void"
        self._open.clear()
        self._line.marks.append(Mark(at, "restarted after the last finished step"))

    def build(self, started_at: int | None, now: int | None) -> Timeline:
        line = self._line
        if line.outcome is None and now is not None:
            line.length = max(line.length, now - line.accepted_at)
        for bar in line.bars:
            if bar.state == "running":
                bar.ended = line.length
                if line.outcome is not None:
                    bar.state = "failed"
        line.tokens.characters = sum(characters for _, characters in self._tokens)
        line.first_token = line.tokens.times[0] if line.tokens.times else None
        if started_at is not None:
            started = max(started_at - line.accepted_at, 0)
        else:
            started = line.length if line.events <= 2 else 0  # Still queued.
        line.phases = _phases(line, min(started, line.length))
        line.silences = self._silences(line)
        return line

    def _silences(self, line: Timeline) -> list[TimeSpan]:
        moments = [*self._moments, line.length] if line.outcome is None else self._moments
        pauses = [TimeSpan(begin, end) for begin, end in pairwise(moments) if end - begin >= SILENCE_MS]
        return [pause for pause in pauses if not any(_overlap(pause, wait) > pause.ms // 2 for wait in line.waits)]


def _phases(line: Timeline, started: int) -> list[Phase]:
    """Assign every moment to one phase. Earlier layers take precedence."""
    layers: list[tuple[PhaseName, list[TimeSpan]]] = [
        ("waiting", [bar for bar in line.bars if bar.kind == "wait"]),
        ("queued", [TimeSpan(0, started)]),
        ("tools", [bar for bar in line.bars if bar.kind in ("tool", "search")]),
        ("answering", _bursts(line.tokens.times)),
        ("thinking", [TimeSpan(0, line.length)]),
    ]
    edges = (at for _, spans in layers for span in spans for at in (span.began, span.ended))
    borders = sorted({0, line.length, *edges})
    phases: list[Phase] = []
    for begin, end in pairwise(borders):
        phase = next(
            Phase(begin, end, name)
            for name, spans in layers
            if any(span.began <= begin and span.ended >= end for span in spans)
        )
        if phases and phases[-1].name == phase.name:
            phases[-1].ended = end
        else:
            phases.append(phase)
    return phases


def _bursts(times: Sequence[int]) -> list[TimeSpan]:
    """Return the spans in which tokens came without a pause."""
    bursts: list[TimeSpan] = []
    for at in times:
        if bursts and at - bursts[-1].ended < SILENCE_MS:
            bursts[-1].ended = at
        else:
            bursts.append(TimeSpan(at, at))
    return bursts


def _overlap(first: TimeSpan, second: TimeSpan) -> int:
    return max(0, min(first.ended, second.ended) - max(first.began, second.began))


def duration_text(ms: float) -> str:
    """Return a short duration: 850 ms, 12.4 s, 3 min 20 s, 2 h 5 min."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 100_000:
        return f"{ms / 1000:.1f} s".replace(".0 s", " s")
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
