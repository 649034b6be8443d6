"""When things happened in a turn: phases, steps, tokens and silences. Plain values; `retracing` reads them from a log.

Times are milliseconds after the turn was accepted.
"""

from bisect import bisect_left
from collections.abc import Sequence
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
"""A pause this long, with nobody asked to wait for it, is one that a user notices."""

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
    name: PhaseName


class Bar(TimeSpan):
    """A step. One that is `void` was taken back by a restart."""

    kind: BarKind
    id: str
    name: str
    state: State = "running"
    agent_path: tuple[str, ...] = ()
    position: int = 0


class Mark(Struct):
    at: int
    text: str


class Tokens(Struct):
    """Of the answer; `per_second` is how fast they came while they came, pauses left out."""

    times: list[int] = field(default_factory=list[int])
    characters: int = 0
    reasoning: int = 0

    @property
    def count(self) -> int:
        return len(self.times)

    @property
    def per_second(self) -> float | None:
        found = stretches(self.times)
        ms = sum(one.ms for one in found)
        return (self.count - len(found)) * 1000 / ms if ms else None


class Timeline(Struct, kw_only=True):
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


def stretches(times: Sequence[int]) -> list[TimeSpan]:
    """The times in which tokens came without a pause."""
    found: list[TimeSpan] = []
    for at in times:
        if found and at - found[-1].ended < SILENCE_MS:
            found[-1].ended = at
        else:
            found.append(TimeSpan(at, at))
    return found


def rate(times: Sequence[int], begin: float, end: float) -> float:
    """Tokens a second between two moments."""
    if end <= begin:
        return 0.0
    return (bisect_left(times, end) - bisect_left(times, begin)) * 1000 / (end - begin)


def spent_by_phase(line: Timeline) -> dict[str, int]:
    """Those that lasted long enough to be seen, in the order they came."""
    spent: dict[str, int] = {}
    for phase in line.phases:
        spent[phase.name] = spent.get(phase.name, 0) + phase.ms
    return {name: ms for name, ms in spent.items() if ms * 200 >= line.length}


def timeline_json(line: Timeline) -> dict[str, Any]:
    """For programs: everything but the time of each token."""
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
        "spent_ms": spent_by_phase(line),
        "phases": [{"name": one.name, "began_ms": one.began, "ended_ms": one.ended} for one in line.phases],
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
        "silences": [{"began_ms": one.began, "ended_ms": one.ended} for one in line.silences],
        "marks": [{"at_ms": mark.at, "text": mark.text} for mark in line.marks],
        "usage": None if line.usage is None else {name: getattr(line.usage, name) for name in Usage.__struct_fields__},
    }


# Reads a log into a timeline: a pure function, of a turn that has ended or still runs.


def timeline_of(events: Sequence[LoggedEvent], started_at: int | None = None, now: int | None = None) -> Timeline:
    """`started_at` is when a worker claimed the turn, if that is known; `now` is where one that runs is cut."""
    if not events:
        return Timeline()
    drawing = _Drawing(events[0].at)
    for logged in events:
        drawing.add(logged)
    return drawing.finished(started_at, now)


class _Drawing:
    def __init__(self, accepted_at: int) -> None:
        self._line = Timeline(accepted_at=accepted_at)
        self._open: dict[tuple[str, str], Bar] = {}
        self._waits: dict[str, Bar] = {}
        self._moments: list[int] = []
        self._token_positions: list[int] = []
        self._epoch = 0
        self._was_asked = False

    def add(self, logged: LoggedEvent) -> None:
        line, at, event = self._line, logged.at - self._line.accepted_at, logged.event
        self._moments.append(at)
        line.events, line.length = logged.position, max(line.length, at)
        if logged.position > 2 and line.first_event is None:
            line.first_event = at
        if logged.epoch > self._epoch:
            # A turn that waited for a person is claimed anew each time somebody decides.
            if self._epoch and not self._was_asked:
                line.marks.append(Mark(at, "taken over by another worker"))
            self._epoch = logged.epoch
        self._was_asked = isinstance(event, ApprovalRequestEvent | ApprovalResponseEvent)
        match event:
            case SessionEvent():
                line.turn_id, line.session_id, line.agent = event.turn_id, event.session_id, event.agent
            case TokenEvent() if not event.agent_path:
                line.tokens.times.append(at)
                line.tokens.characters += len(event.content)
                self._token_positions.append(logged.position)
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
                line.bars.append(Bar(at, at, "review", event.step_id, name, "succeeded", event.agent_path))
            case ApprovalRequestEvent():
                wait = Bar(at, at, "wait", event.call_id, f"a person: {event.tool}", agent_path=event.agent_path)
                self._waits[event.call_id] = wait
                # The call is in the log, but does not run before it is decided.
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
        tokens = self._line.tokens
        kept = sum(position <= event.from_position for position in self._token_positions)
        del tokens.times[kept:], self._token_positions[kept:]
        for bar in self._line.bars:
            if bar.position > event.from_position or bar.state == "running":
                bar.ended, bar.state = max(bar.ended, bar.began), "void"
        self._open.clear()
        self._line.marks.append(Mark(at, "run again from the last finished step"))

    def finished(self, started_at: int | None, now: int | None) -> Timeline:
        line = self._line
        if line.outcome is None and now is not None:
            line.length = max(line.length, now - line.accepted_at)
        for bar in line.bars:
            if bar.state == "running":
                bar.ended = line.length
                if line.outcome is not None:
                    bar.state = "failed"
        line.first_token = line.tokens.times[0] if line.tokens.times else None
        if started_at is not None:
            started = max(started_at - line.accepted_at, 0)
        else:
            started = line.length if line.events <= 2 else 0  # Nobody has claimed it yet.
        line.phases = _phases(line, min(started, line.length))
        line.silences = self._silences(line)
        return line

    def _silences(self, line: Timeline) -> list[TimeSpan]:
        excused = [TimeSpan(phase.began, phase.ended) for phase in line.phases if phase.name in ("queued", "waiting")]
        ends = [*self._moments, line.length] if line.outcome is None else self._moments
        pauses = [TimeSpan(begin, end) for begin, end in pairwise(ends) if end - begin >= SILENCE_MS]
        return [pause for pause in pauses if not any(_overlap(pause, one) > pause.ms // 2 for one in excused)]


def _phases(line: Timeline, started: int) -> list[Phase]:
    """Every moment is of one phase; of several that fit, the one that explains most."""
    layers: list[tuple[PhaseName, list[TimeSpan]]] = [
        ("waiting", [bar for bar in line.bars if bar.kind == "wait"]),
        ("queued", [TimeSpan(0, started)]),
        ("tools", [bar for bar in line.bars if bar.kind in ("tool", "search")]),
        ("answering", stretches(line.tokens.times)),
    ]
    borders = sorted({0, line.length, *(at for _, spans in layers for one in spans for at in (one.began, one.ended))})
    phases: list[Phase] = []
    for begin, end in pairwise(borders):
        here: PhaseName = "thinking"
        for name, spans in layers:
            if any(one.began <= begin and one.ended >= end for one in spans):
                here = name
                break
        if phases and phases[-1].name == here:
            phases[-1].ended = end
        else:
            phases.append(Phase(begin, end, here))
    return phases


def _overlap(one: TimeSpan, other: TimeSpan) -> int:
    return max(0, min(one.ended, other.ended) - max(one.began, other.began))


# How the time of a turn is laid out on a line: evenly, but a long wait for a person takes little room.


_WAIT_SHARE = 0.12
"""As much of the line as one wait takes at most."""
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)


class Scale:
    """Maps milliseconds to 0…1. `breaks` are the stretches that are drawn shorter than they were."""

    def __init__(self, line: Timeline) -> None:
        waits = [phase for phase in line.phases if phase.name in ("queued", "waiting")]
        rest = max(line.length - sum(phase.ms for phase in waits), 1)
        most = rest * _WAIT_SHARE
        self.breaks: list[TimeSpan] = [TimeSpan(phase.began, phase.ended) for phase in waits if phase.ms > most * 2]
        borders = sorted({0, max(line.length, 1), *(at for one in self.breaks for at in (one.began, one.ended))})
        shortened = {one.began for one in self.breaks}
        sizes = [most if begin in shortened else end - begin for begin, end in pairwise(borders)]
        whole = sum(sizes)
        self._pieces: list[tuple[int, int, float, float]] = []
        place = 0.0
        for (begin, end), size in zip(pairwise(borders), sizes, strict=True):
            self._pieces.append((begin, end, place, size / whole))
            place += size / whole

    def __call__(self, ms: float) -> float:
        for begin, end, place, size in self._pieces:
            if ms <= end:
                return place + size * max(ms - begin, 0) / (end - begin)
        return 1.0

    def moment(self, place: float) -> float:
        """The other way round."""
        for begin, end, start, size in self._pieces:
            if place <= start + size:
                return begin + (end - begin) * max(place - start, 0) / size
        return float(self._pieces[-1][1])

    def ticks(self, most: int) -> list[int]:
        """Round moments to write along the line, those inside a break left out."""
        length = self._pieces[-1][1]
        drawn = length - sum(one.ms for one in self.breaks) or length
        step = next((step for step in _STEPS if drawn / step <= most), 3_600_000)
        if length / step > 2_000:
            step = length // most
        return [at for at in range(0, length + 1, step) if not any(one.began < at < one.ended for one in self.breaks)]


def time_words(ms: float) -> str:
    """As short as can be: 850 ms, 12.4 s, 3 min 20 s, 2 h 5 min."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 100_000:
        return f"{ms / 1000:.1f} s".replace(".0 s", " s")
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
