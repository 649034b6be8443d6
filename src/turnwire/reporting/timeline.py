"""The timeline of a turn: phases, steps, tokens and silences, computed from its log. Pure: no I/O, no clock.

Times are milliseconds after the turn was accepted.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct, field

from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    InputEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
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
from turnwire.core.log.state import add_usage
from turnwire.settings import ModelPrice

SILENCE_MS = 1_000
"""A pause of this length counts as a silence, unless the turn was queued or waited for a person."""
_WAIT_SHARE = 0.12
"""The largest share of the line that one wait may take."""
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)

PhaseName = Literal["queued", "thinking", "tools", "answering", "waiting"]
BarKind = Literal["model", "reasoning", "agent", "tool", "search", "review", "wait"]
State = Literal["running", "succeeded", "failed", "cancelled", "void"]


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
    """A step of the turn. A `void` step was taken back by a restart, a `cancelled` one was under way at the end.

    `parent` is the step that it is part of: a tool call of a sub-agent is part of the sub-agent, which is part of the
    call that started it; reasoning is part of a model call. `depth` is the number of steps above it.
    """

    kind: BarKind
    id: str
    name: str
    state: State = "running"
    agent_path: tuple[str, ...] = ()
    position: int = 0
    parent: "Bar | None" = None
    depth: int = 0
    usage: UsageEvent | None = None
    first_words: int | None = None
    """When a model call began to write or to reason."""

    @property
    def label(self) -> str:
        """Return the step's name, indented by its depth."""
        return "  " * self.depth + self.name

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
        if self.state == "cancelled":
            return "failed"
        return self.state if self.state in ("failed", "void") else self.kind


class Milestone(Struct):
    """Something that happened at a moment: `restarted`, `taken_over`, `message` or `handed_over`."""

    at: int
    name: str
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
    """A turn's course. `length` is the time from acceptance to the last event, or to now while the turn runs.

    A fork shares the events up to the position `forked_at` with another turn; the last of them is of the time `shared`.
    """

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
    first_words: int | None = None
    first_token: int | None = None
    forked_at: int = 0
    shared: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    phases: list[Phase] = field(default_factory=list[Phase])
    bars: list[Bar] = field(default_factory=list[Bar])
    silences: list[TimeSpan] = field(default_factory=list[TimeSpan])
    milestones: list[Milestone] = field(default_factory=list[Milestone])
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


class Cost(Struct, frozen=True):
    """The cost of a turn's model calls in US dollars, without those of the `unpriced` models."""

    dollars: float
    unpriced: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        rest = f", without {', '.join(self.unpriced)}" if self.unpriced else ""
        return f"${self.dollars:.{2 if self.dollars >= 1 else 4}f}{rest}"


def cost_of(line: Timeline, prices: Mapping[str, ModelPrice]) -> Cost | None:
    """Return the cost of a turn, restarted model calls included; None if none of its models has a price."""
    calls = [bar.usage for bar in line.bars if bar.usage is not None]
    priced = [(prices[call.model], call) for call in calls if call.model is not None and call.model in prices]
    if not priced:
        return None
    dollars = sum(price.cost(call.input_tokens, call.output_tokens, call.cached_input_tokens) for price, call in priced)
    unpriced = dict.fromkeys(call.model or "an unnamed model" for call in calls if call.model not in prices)
    return Cost(dollars, tuple(unpriced))


def timeline_json(line: Timeline, cost: Cost | None = None) -> dict[str, Any]:
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
                "depth": bar.depth,
            }
            for bar in line.bars
        ],
        "silences": [{"began_ms": silence.began, "ended_ms": silence.ended} for silence in line.silences],
        "marks": [{"at_ms": milestone.at, "text": milestone.text} for milestone in line.milestones],
        "cost_usd": None if cost is None else round(cost.dollars, 6),
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


class _AgentRun:
    """The part of a turn that one agent path did: its bar, the call that started it, and the model call under way."""

    def __init__(self, bar: Bar | None, owner: Bar | None, ready: int) -> None:
        self.bar = bar
        self.owner = owner
        self.ready = ready
        """When the agent had all input for its next model call."""
        self.model: Bar | None = None
        self.reasoning: Bar | None = None

    def start_model(self, logged: LoggedEvent) -> Bar:
        """Return the model call under way. The log has no event for its start: it began when its input was there."""
        if self.model is None:
            path, position = logged.agent_path, logged.position
            ready = self.ready
            self.model = Bar(ready, ready, "model", "", "model", agent_path=path, position=position, parent=self.bar)
        return self.model

    def finish_model(self, at: int) -> None:
        self.ready, self.model, self.reasoning = at, None, None


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
        self._runs: dict[tuple[str, ...], _AgentRun] = {(): _AgentRun(None, None, 0)}

    def add(self, logged: LoggedEvent) -> None:
        line, at, event = self._line, logged.at - self._line.accepted_at, logged.event
        self._moments.append(at)
        line.events, line.length = logged.position, max(line.length, at)
        if logged.position > 2 and line.first_event is None:
            line.first_event = at
        if logged.epoch > self._epoch:
            # A turn that waited for approval is claimed again after each decision; that is no takeover.
            if self._epoch and not self._was_approval:
                line.milestones.append(Milestone(at, "taken_over", "taken over by another worker"))
            self._epoch = logged.epoch
        self._was_approval = isinstance(event, ApprovalRequestEvent | ApprovalResponseEvent)
        run = self._run(logged.agent_path, logged, at)
        if logged.position <= line.forked_at:
            line.shared = at
        match event:
            case SessionEvent():
                line.turn_id, line.session_id, line.agent = event.turn_id, event.session_id, event.agent
                line.forked_at = event.forked_at or 0
            case TokenEvent():
                self._write(run, logged, at)
                if not event.agent_path:
                    line.tokens.times.append(at)
                    self._tokens.append((logged.position, len(event.content)))
            case ReasoningEvent():
                line.tokens.reasoning += 1
                self._reason(run, logged, at)
            case ToolCallEvent():
                run.start_model(logged)
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
                run.finish_model(at)
            case ApprovalRequestEvent():
                wait = Bar(at, at, "wait", event.call_id, f"a person: {event.tool}", parent=run.bar)
                wait.agent_path, wait.position = event.agent_path, logged.position
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
                run.finish_model(at)
            case QuestionEvent():
                wait = Bar(at, at, "wait", event.id, "a person: question", parent=run.bar)
                wait.agent_path, wait.position = event.agent_path, logged.position
                self._waits[event.id] = wait
                line.bars.append(wait)
            case ReplyEvent():
                if wait := self._waits.pop(event.question_id, None):
                    wait.ended, wait.state = at, "failed" if event.declined else "succeeded"
                run.finish_model(at)
            case InputEvent():
                line.milestones.append(Milestone(at, "message", "message of the user"))
            case HandoffEvent():
                line.milestones.append(Milestone(at, "handed_over", f"handed to {event.agent}"))
            case RestartEvent():
                self._restart(event, at)
            case UsageEvent():
                self._end_model(run, event, logged, at)
            case ErrorEvent():
                line.error = event.code
            case DoneEvent():
                line.outcome, line.reason = event.outcome, event.reason
            case _:
                pass

    def _run(self, path: tuple[str, ...], logged: LoggedEvent, at: int) -> _AgentRun:
        """Return the run of an agent path, begun by the call of its parent that is open, if any."""
        run = self._runs.get(path)
        if run is None:
            parent = self._run(path[:-1], logged, at)
            calls = (bar for bar in self._open.values() if bar.kind == "tool" and bar.agent_path == path[:-1])
            owner = max(calls, key=lambda bar: bar.position, default=None)
            began = owner.began if owner else at
            bar = Bar(began, at, "agent", "/".join(path), path[-1], parent=owner or parent.bar)
            bar.agent_path, bar.position = path[:-1], logged.position
            self._line.bars.append(bar)
            run = self._runs[path] = _AgentRun(bar, owner, began)
        if run.bar is not None:
            run.bar.ended = at
        return run

    def _write(self, run: _AgentRun, logged: LoggedEvent, at: int) -> Bar:
        """Return the model call that writes or reasons, and note its first words."""
        model, line = run.start_model(logged), self._line
        if logged.position > line.forked_at:
            if model.first_words is None:
                model.first_words = at
            if line.first_words is None and not logged.agent_path:
                line.first_words = at
        return model

    def _reason(self, run: _AgentRun, logged: LoggedEvent, at: int) -> None:
        model = self._write(run, logged, at)
        if run.reasoning is None:
            run.reasoning = Bar(at, at, "reasoning", f"reasoning-{logged.position}", "reasoning", parent=model)
            run.reasoning.state = "succeeded"
            run.reasoning.agent_path, run.reasoning.position = logged.agent_path, logged.position
            self._line.bars.append(run.reasoning)
        run.reasoning.ended = at

    def _end_model(self, run: _AgentRun, event: UsageEvent, logged: LoggedEvent, at: int) -> None:
        bar = run.start_model(logged)
        bar.ended, bar.state = at, "succeeded"
        if logged.position > self._line.forked_at:  # The turn that was forked has counted the rest.
            bar.usage = event
            self._line.usage = add_usage(self._line.usage, event)
        bar.id, bar.name = f"model-{logged.position}", event.model or "model"
        self._line.bars.append(bar)
        run.finish_model(at)

    def _begin(self, kind: BarKind, step_id: str, name: str, logged: LoggedEvent, at: int) -> Bar:
        bar = Bar(at, at, kind, step_id, name, parent=self._runs[logged.agent_path].bar)
        bar.agent_path, bar.position = logged.agent_path, logged.position
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
        self._runs[logged.agent_path].finish_model(at)
        # The sub-agents that the call started have ended with it; a later call of the same names is another run.
        for path, run in list(self._runs.items()):
            if run.bar is not None and run.owner is bar:
                run.bar.ended, run.bar.state = at, bar.state
                for below in [below for below in self._runs if below[: len(path)] == path]:
                    del self._runs[below]

    def _restart(self, event: RestartEvent, at: int) -> None:
        count = sum(position <= event.from_position for position, _ in self._tokens)
        del self._line.tokens.times[count:], self._tokens[count:]
        for bar in self._line.bars:
            if bar.position > event.from_position or bar.state == "running":
                bar.ended, bar.state = max(bar.ended, bar.began), "void"
        self._open.clear()
        self._runs = {(): _AgentRun(None, None, at)}
        self._line.milestones.append(Milestone(at, "restarted", "restarted after the last finished step"))

    def build(self, started_at: int | None, now: int | None) -> Timeline:
        line = self._line
        if line.outcome is None and now is not None:
            line.length = max(line.length, now - line.accepted_at)
        for bar in line.bars:
            if bar.state == "running" and bar.kind == "agent" and line.outcome is not None:
                # The log does not say when an agent that no call started has ended: its bar ends with its last event.
                bar.state = "succeeded" if line.outcome == "completed" else "failed"
            elif bar.state == "running":
                bar.ended = line.length
                if line.outcome is not None:
                    bar.state = "cancelled"
        line.tokens.characters = sum(characters for _, characters in self._tokens)
        line.first_token = line.tokens.times[0] if line.tokens.times else None
        if started_at is not None:
            started = max(started_at - line.accepted_at, 0)
        else:
            started = line.length if line.events <= 2 else 0  # Still queued.
        for bar in line.bars:
            bar.began = max(bar.began, min(started, bar.ended))
        line.bars = _tree(line.bars)
        line.phases = _phases(line, min(started, line.length))
        line.silences = self._silences(line)
        return line

    def _silences(self, line: Timeline) -> list[TimeSpan]:
        moments = [*self._moments, line.length] if line.outcome is None else self._moments
        pauses = [TimeSpan(begin, end) for begin, end in pairwise(moments) if end - begin >= SILENCE_MS]
        return [pause for pause in pauses if not any(_overlap(pause, wait) > pause.ms // 2 for wait in line.waits)]


def _tree(bars: list[Bar]) -> list[Bar]:
    """Return the bars with the parts of each after it, in order of time, and set their depths."""
    drawn = {id(bar) for bar in bars}
    parts: dict[int | None, list[Bar]] = {}
    for bar in sorted(bars, key=lambda bar: bar.began):
        # A model call without usage is not drawn: its reasoning is part of the agent.
        while bar.parent is not None and id(bar.parent) not in drawn:
            bar.parent = bar.parent.parent
        parts.setdefault(None if bar.parent is None else id(bar.parent), []).append(bar)
    ordered: list[Bar] = []

    def add(parent: int | None, depth: int) -> None:
        for bar in parts.get(parent, ()):
            bar.depth = depth
            ordered.append(bar)
            add(id(bar), depth + 1)

    add(None, 0)
    return ordered


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


class Scale:
    """A map of milliseconds to 0…1, even but for `breaks`: long waits, which are drawn shorter than they were."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        rest = max(line.length - sum(wait.ms for wait in line.waits), 1)
        break_size = rest * _WAIT_SHARE
        self.breaks = [wait for wait in line.waits if wait.ms > break_size * 2]
        borders = sorted({0, max(line.length, 1), *(at for wait in self.breaks for at in (wait.began, wait.ended))})
        shortened = {wait.began for wait in self.breaks}
        sizes = [break_size if begin in shortened else end - begin for begin, end in pairwise(borders)]
        total = sum(sizes)
        self._pieces: list[tuple[int, int, float, float]] = []
        offset = 0.0
        for (begin, end), size in zip(pairwise(borders), sizes, strict=True):
            self._pieces.append((begin, end, offset, size / total))
            offset += size / total

    def __call__(self, ms: float) -> float:
        for begin, end, offset, size in self._pieces:
            if ms <= end:
                return offset + size * max(ms - begin, 0) / (end - begin)
        return 1.0

    def moment(self, fraction: float) -> float:
        """Return the milliseconds at a fraction of the line."""
        for begin, end, offset, size in self._pieces:
            if fraction <= offset + size:
                return begin + (end - begin) * max(fraction - offset, 0) / size
        return float(self._pieces[-1][1])

    def is_broken(self, ms: float) -> bool:
        return any(wait.began < ms < wait.ended for wait in self.breaks)

    def ticks(self, max_count: int) -> list[int]:
        """Return round moments for the axis, without those inside a break."""
        length = self._pieces[-1][1]
        drawn = length - sum(wait.ms for wait in self.breaks) or length
        step = next((step for step in _STEPS if drawn / step <= max_count), 3_600_000)
        if length / step > 2_000:
            step = length // max_count
        return [at for at in range(0, length + 1, step) if not self.is_broken(at)]

    def token_rates(self, slices: int) -> list[float]:
        """Return the token rate in each of `slices` equal parts of the line, 1 for the highest."""
        borders = [self.moment(number / slices) for number in range(slices + 1)]
        borders[-1] += 1
        times = self._line.tokens.times
        rates = [
            (bisect_left(times, end) - bisect_left(times, begin)) / (end - begin) if end > begin else 0.0
            for begin, end in pairwise(borders)
        ]
        highest = max(rates) or 1
        return [rate / highest for rate in rates]


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
