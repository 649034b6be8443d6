"""How long extensions may take, and how long a conversation lasts. Times are in seconds."""

from msgspec import Struct


class KernelLimits(Struct, frozen=True, kw_only=True):
    session_timeout: float = 1800
    """A message after so long a silence begins a new session; 0 for never."""
    extension_timeout: float = 10
    """For initialize, start, stop, destroy, health_check, get_context."""
    channel_timeout: float = 30
    """For a channel to show one thing, and for a subscriber to take one event."""
    health_interval: float = 30
    restart_delay: float = 1
    """Before a service that failed, a subscriber or a delivery is tried again; it doubles each time."""
    delivery_attempts: int = 5
    closing_patience: float = 5
    """How long answers that are complete may take to be delivered while the server goes down."""
