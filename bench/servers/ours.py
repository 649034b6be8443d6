"""The settings and agent of Turnwire's variants, with limits above what the bench opens."""

from collections.abc import AsyncIterator

from bench.sources import tokens
from turnwire import Settings, Turn

# The limits must not affect the measurement.
ROOMY = Settings(max_open_streams=100_000, max_running_turns=100_000, max_worker_turns=100_000)


class Source:
    """An agent that passes the source on."""

    def answer(self, turn: Turn) -> AsyncIterator[str]:
        return tokens(turn.message)
