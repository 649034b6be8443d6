"""The decision of a person about a tool call, as the agent gets it from `approval()`."""

from typing import Any

from msgspec import Struct


class Decision(Struct, frozen=True, kw_only=True):
    """A person's decision about one call. `args` are those that the person allowed; no others may be used.

    `is_repeat` is True if the call ran when its worker was lost, so that it may have taken effect already.
    `requested_args` are those of the model, if the person has changed them.
    """

    call_id: str
    tool: str
    args: dict[str, Any]
    approved: bool
    reason: str | None = None
    by: str | None = None
    is_repeat: bool = False
    requested_args: dict[str, Any] | None = None

    @property
    def denial(self) -> str:
        """Return the result of a denied call, for the model."""
        if self.is_repeat:
            why = f" ({self.reason})" if self.reason else ""
            return f"Outcome unknown: it broke off while it ran, and the user did not allow it to run again{why}."
        return f"Denied: {self.reason}" if self.reason else "Denied: the user did not allow this."
