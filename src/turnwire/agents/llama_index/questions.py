"""Questions in the middle of a run: `ctx.wait_for_event(HumanResponseEvent)` in a tool is a question of the turn."""

from typing import Any, cast

from llama_index.core.workflow import HumanResponseEvent

from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.journal.waits import ask


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
