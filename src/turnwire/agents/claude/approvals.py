"""The tools that need approval: ours by their declaration, all others by the SDK's permission rules."""

from collections.abc import Collection
from typing import Any

from turnwire.agents.claude.tools import InProcessTools
from turnwire.core.log.events import ApprovalRequestEvent


class PermissionRules:
    """The rules for our tools, and for the requests of Claude Code."""

    def __init__(self, tools: InProcessTools, editable: Collection[str]) -> None:
        self._tools = tools
        self._editable = frozenset(editable)

    def permission(self, tool: str, args: dict[str, Any]) -> str | None:
        """Return `allow` or `ask` for a call of one of our tools, and None for those that Claude Code decides."""
        ours = self._tools.find(tool)
        if ours is None:
            return None
        return "ask" if ours.requires_approval(args) else "allow"

    def request(self, call_id: str, tool: str, args: dict[str, Any]) -> ApprovalRequestEvent:
        name, ours = self._tools.shown_name(tool), self._tools.find(tool)
        editable = name in self._editable or bool(ours and ours.editable)
        return ApprovalRequestEvent(call_id, name, args, editable=editable)
