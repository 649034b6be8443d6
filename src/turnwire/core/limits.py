"""What one turn, one session and one principal may use. Times are in seconds."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    max_event_bytes: int = 256 * 1024
    max_events_per_turn: int = 100_000
    max_uncommitted_events: int = 1_000
    max_queued_turns: int = 8
    max_running_turns: int = 64
    max_worker_turns: int = 1_000
    max_steps_per_turn: int = 100
    max_tokens_per_day: int = 0
    history_turns: int = 50
    history_tokens: int = 32_000
    turn_timeout: float = 600
    approval_timeout: float = 86_400
    cancel_patience: float = 5
    lease: float = 10
