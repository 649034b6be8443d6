"""Approvals and questions in the middle of a run.

The SDK has no approval of tools of its own: a tool of ours may need one, and the adapter names others. Its way to ask a
person, `ctx.wait_for_event(HumanResponseEvent)` in a tool, becomes a question.
"""

from collections.abc import Collection
from typing import Any, cast

from llama_index.core.tools import AsyncBaseTool
from llama_index.core.workflow import HumanResponseEvent

from turnwire.agents.llama_index.tools import TurnwireTool
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.journal.waits import approval, ask
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ApprovalRequestEvent


class ApprovalRules:
    """The tools that need approval, and those whose arguments a person may change, besides what our tools say."""

    def __init__(self, needs_approval: Collection[str] = (), editable: Collection[str] = ()) -> None:
        self._needs_approval = frozenset(needs_approval)
        self._editable = frozenset(editable)

    async def decide(
        self, tool: AsyncBaseTool, call_id: str, args: dict[str, Any], path: tuple[str, ...]
    ) -> Decision | None:
        """Return a person's decision about a call, or None if it needs none."""
        name = tool.metadata.get_name()
        ours = tool.tool if isinstance(tool, TurnwireTool) else None
        if name not in self._needs_approval and not (ours and ours.requires_approval(args)):
            return None
        editable = name in self._editable or bool(ours and ours.editable)
        return await approval(ApprovalRequestEvent(call_id, name, args, editable=editable, agent_path=path))


class AskingContext:
    """The context of a run, in which a tool's wait for a person is a question of the turn."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def wait_for_event(self, event_type: type[Any], *args: Any, **options: Any) -> Any:
        if not issubclass(event_type, HumanResponseEvent) or current_journal() is None:
            return await self._ctx.wait_for_event(event_type, *args, **options)
        waiter: Any = options.get("waiter_event") or (args[0] if args else None)
        prompt = getattr(waiter, "prefix", None) or options.get("waiter_id") or "The agent needs an answer."
        value = await ask(str(prompt))
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"response": value}
        return event_type(**{**(options.get("requirements") or {}), **fields})
