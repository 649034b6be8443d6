"""Which sub-agents are at work. A log does not say when one has finished, so they all do when the run ends."""

from collections.abc import Mapping, Sequence

from turnwire.wires.ag_ui.frames import Told, told
from turnwire.wires.ag_ui.voices import Path


class Crew:
    """`ids` are for the whole turn: who was suspended with a run goes on with the next one."""

    def __init__(self) -> None:
        self._ids: dict[Path, str] = {}
        self._at_work: list[Path] = []

    def id_of(self, path: Path) -> str | None:
        """None for the turn's own agent."""
        return self._ids.get(path)

    def begin(self, path: Path, turn_id: str, position: int) -> Told:
        """Those on the path that have not begun in this run, outermost first."""
        begun: Told = []
        for depth, name in enumerate(path, 1):
            here = path[:depth]
            if here in self._at_work:
                continue
            own = self._ids.setdefault(here, f"{turn_id}:agent-{position}-{depth}")
            self._at_work.append(here)
            parent = self._ids.get(here[:-1])
            begun.append(told("SUBAGENT_STARTED", subagentRunId=own, name=name, parentSubagentRunId=parent))
        return begun

    def ended(self, asked: Mapping[Path, Sequence[str]] | None = None) -> Told:
        """How all of them end, innermost first. `asked` are the interrupts that each waits for."""
        return [self._end(path, (asked or {}).get(path)) for path in reversed(self._at_work)]

    def forget(self) -> None:
        self._at_work.clear()

    def _end(self, path: Path, waits_for: Sequence[str] | None) -> bytes:
        outcome = {"type": "suspended", "interruptIds": list(waits_for)} if waits_for else None
        return told("SUBAGENT_FINISHED", subagentRunId=self._ids[path], outcome=outcome)
