"""Which roots have changed on disk, as it happens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

_STEP_MS = 200
_FIRST_MS = 1_000


async def changed_roots(roots: Sequence[Path]) -> AsyncIterator[list[Path]]:
    """Roots must be resolved. A burst of changes is told once, when it is over.

    All of them are told once at the beginning: what changed before the watch had begun, nobody has seen.
    """
    has_begun = False
    async for changes in awatch(
        *await asyncio.to_thread(_folders, roots),
        ignore_permission_denied=True,
        step=_STEP_MS,
        rust_timeout=_FIRST_MS,
        yield_on_timeout=True,
    ):
        paths = [Path(path) for _, path in changes]
        changed = [root for root in roots if not has_begun or any(path.is_relative_to(root) for path in paths)]
        has_begun = True
        if changed:
            yield changed


def _folders(roots: Sequence[Path]) -> set[Path]:
    """One that is not there any more must not end the watch over the others."""
    return {folder for root in roots if (folder := root if root.is_dir() else root.parent).is_dir()}
