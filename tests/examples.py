"""The number of examples that hypothesis generates for a test."""

from hypothesis import settings

_FULL = 100


def examples(number: int) -> int:
    """Return the number of examples for a test that needs `number` in a full run, and fewer with `--fast`."""
    return max(1, number * settings().max_examples // _FULL)
