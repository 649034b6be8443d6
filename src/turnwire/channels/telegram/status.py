"""The line below an answer that is being made: what the agent does now, and for how long."""

from turnwire.channels.telegram.clock import Clock
from turnwire.extensions.contract import StreamStep

_ICONS = {"tool": "🔧", "search": "🔎", "review": "🧐", "handoff": "🤝", "status": "💬"}
_MOST_CHARS = 80


class StatusLine:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps: dict[str, tuple[StreamStep, float]] = {}
        self._said = ""

    def say(self, status: str) -> None:
        """Something that has no end of its own: it stands until there is news."""
        self._said = _shortened(status)

    def take(self, step: StreamStep) -> None:
        if step.kind in ("handoff", "review", "status"):
            self.say(f"{_ICONS[step.kind]} {step.summary or step.name}")
        elif step.phase in ("finished", "failed"):
            self._steps.pop(step.id, None)
            self._said = f"⚠️ {step.name} failed" if step.phase == "failed" else ""
        else:
            began = self._clock.now() - (step.elapsed_ms or 0) / 1000
            _, began = self._steps.get(step.id, (step, began))
            self._steps[step.id] = (step, began)

    @property
    def is_running(self) -> bool:
        return bool(self._steps)

    def what(self) -> str:
        """The latest step, or what was said last; empty if there is nothing to tell."""
        if not self._steps:
            return self._said
        step, _ = next(reversed(self._steps.values()))
        told = f"{_ICONS[step.kind]} {step.name}"
        if step.summary:
            told = f"{told}: {step.summary}"
        if step.fraction is not None:
            told = f"{told} {step.fraction:.0%}"
        others = f" (+{len(self._steps) - 1})" if len(self._steps) > 1 else ""
        return _shortened(told) + others

    def line(self) -> str:
        """The same with the step's age."""
        if not self._steps:
            return self._said
        _, began = next(reversed(self._steps.values()))
        return f"{self.what()} · {int(self._clock.now() - began)} s"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 1] + "…"
