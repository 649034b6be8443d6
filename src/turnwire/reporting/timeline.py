"""When things happened in a turn: phases, steps, tokens and silences. Plain values; `retracing` reads them from a log.

Times are milliseconds after the turn was accepted.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, field

from turnwire.core.events import Usage

SILENCE_MS = 1_000
"""A pause this long, with nobody asked to wait for it, is one that a user notices."""

PhaseName = Literal["queued", "thinking", "tools", "answering", "waiting"]
BarKind = Literal["tool", "search", "review", "wait"]
State = Literal["running", "succeeded", "failed", "void"]


class Span(Struct):
    began: int
    ended: int

    @property
    def ms(self) -> int:
        return self.ended - self.began


class Phase(Span):
    name: PhaseName


class Bar(Span):
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
    silences: list[Span] = field(default_factory=list[Span])
    marks: list[Mark] = field(default_factory=list[Mark])
    usage: Usage | None = None


def stretches(times: Sequence[int]) -> list[Span]:
    """The times in which tokens came without a pause."""
    found: list[Span] = []
    for at in times:
        if found and at - found[-1].ended < SILENCE_MS:
            found[-1].ended = at
        else:
            found.append(Span(at, at))
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
