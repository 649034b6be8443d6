"""Turnwire as a user would set it up, with room for as many streams as the bench opens."""

from collections.abc import AsyncIterator

from bench.sources import tokens
from turnwire import Settings, Turn

# The limits are tested elsewhere; here they must not be what is measured.
ROOMY = Settings(max_open_streams=100_000, max_running_turns=100_000)


class Source:
    """An agent that hands the source on as it is."""

    def answer(self, turn: Turn) -> AsyncIterator[str]:
        return tokens(turn.message)
