"""Changes that tools make to the store of a run's context, recorded with their results."""

from typing import Any

from turnwire.agents.context_changes import ContextChanges

# What the SDK keeps there itself, and changes again when the run is repeated.
_OWN = frozenset(
    {
        *("agents", "can_handoff_to", "current_agent_name", "current_reasoning", "current_tool_calls"),
        *("early_stopping_method", "formatted_input_with_state", "handoff_output_prompt", "max_iterations"),
        *("memory", "next_agent", "num_iterations", "num_tool_calls", "scratchpad", "user_msg_str"),
    }
)


class StoreChanges:
    """The recorder of one run's store: of `state`, and of other keys of the application with plain JSON values."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._changes: ContextChanges | None = None

    async def take(self, store: Any) -> dict[str, Any] | None:
        """Return what has changed since the last call; nothing when it is called first."""
        state: Any = await store.get_state()
        self._values.clear()
        self._values.update((name, value) for name, value in state.items() if name not in _OWN)
        if self._changes is None:
            self._changes = ContextChanges(self._values)
        return self._changes.take()

    async def restore(self, store: Any, recorded: dict[str, Any] | None) -> None:
        """Make recorded changes again."""
        await self.take(store)
        if recorded and self._changes is not None:
            self._changes.restore(recorded)
            for name in recorded["values"]:
                await store.set(name, self._values[name])
