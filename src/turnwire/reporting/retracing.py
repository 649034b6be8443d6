"""Reads a log into a timeline: a pure function, of a turn that has ended or still runs."""

from collections.abc import Sequence
from itertools import pairwise

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
    UsageEvent,
)
from turnwire.core.fold import add_usage
from turnwire.core.logged import LoggedEvent
from turnwire.reporting.timeline import SILENCE_MS, Bar, BarKind, Mark, Phase, PhaseName, Span, Timeline, stretches


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

    def _silences(self, line: Timeline) -> list[Span]:
        excused = [Span(phase.began, phase.ended) for phase in line.phases if phase.name in ("queued", "waiting")]
        ends = [*self._moments, line.length] if line.outcome is None else self._moments
        pauses = [Span(begin, end) for begin, end in pairwise(ends) if end - begin >= SILENCE_MS]
        return [pause for pause in pauses if not any(_overlap(pause, one) > pause.ms // 2 for one in excused)]


def _phases(line: Timeline, started: int) -> list[Phase]:
    """Every moment is of one phase; of several that fit, the one that explains most."""
    layers: list[tuple[PhaseName, list[Span]]] = [
        ("waiting", [bar for bar in line.bars if bar.kind == "wait"]),
        ("queued", [Span(0, started)]),
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


def _overlap(one: Span, other: Span) -> int:
    return max(0, min(one.ended, other.ended) - max(one.began, other.began))
