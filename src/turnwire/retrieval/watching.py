"""Which roots have changed on disk, as it happens."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

_STEP_MS = 200


async def changed_roots(roots: Sequence[Path]) -> AsyncIterator[list[Path]]:
    """Roots must be resolved. A burst of changes is told once, when it is over."""
    folders = {root if root.is_dir() else root.parent for root in roots}
    # One that is not there any more must not end the watch over the others.
    async for changes in awatch(*filter(Path.is_dir, folders), step=_STEP_MS):
        paths = [Path(path) for _, path in changes]
        changed = [root for root in roots if any(path.is_relative_to(root) for path in paths)]
        if changed:
            yield changed
