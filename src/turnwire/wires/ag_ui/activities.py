"""Searches and reviews as the protocol's activities: what is going on, in a shape of its own, beside the messages."""

from typing import Any

from msgspec import to_builtins

from turnwire.core.events import ReviewEvent, SearchEvent
from turnwire.wires.ag_ui.frames import told
from turnwire.wires.ag_ui.voices import Path


class Activities:
    """A search is shown when it begins, and then changed; a review is told once."""

    def __init__(self) -> None:
        self._searches: dict[tuple[Path, str], str] = {}

    def tell(self, turn_id: str, event: SearchEvent | ReviewEvent, position: int, agent: str | None) -> bytes:
        kind = "search" if isinstance(event, SearchEvent) else "review"
        content: dict[str, Any] = to_builtins(event)
        del content["type"]
        key = event.agent_path, event.step_id
        of = {"activityType": kind, "subagentRunId": agent}
        if kind == "search" and key in self._searches:
            patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in content.items()]
            return told("ACTIVITY_DELTA", messageId=self._searches[key], patch=patch, **of)
        message_id = f"{turn_id}:{kind}-{position}"
        if kind == "search":
            self._searches[key] = message_id
        return told("ACTIVITY_SNAPSHOT", messageId=message_id, content=content, **of)
