"""Keeps a library up to date while a server runs: reads the roots, watches them, takes uploads, embeds.

Everything heavy happens in threads or in a process of its own, and a question never waits for it, except
for the first documents of an empty library.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from turnwire.core.errors import TooManyDocumentsError, UnreadableDocumentError
from turnwire.retrieval.documents.parser import format_of
from turnwire.retrieval.documents.sandbox import parse_in_sandbox
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.records import Document
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sync import SyncProgress, sync_root
from turnwire.retrieval.index.vectors import VectorIndex
from turnwire.retrieval.index.writer import NewDocument

logger = logging.getLogger("turnwire.retrieval")

_PATIENCE = 30.0
_MOMENT = 2.0
_READING_AT_ONCE = 2


class Root(Struct, frozen=True):
    """A folder or a file to answer from; `is_own` for Turnwire's own documentation."""

    path: Path
    is_own: bool = False


class UploadLimits(Struct, frozen=True):
    max_bytes: int = 20 * 1024 * 1024
    max_documents: int = 1_000
    seconds: float = 30.0


class _ClosingError(Exception):
    """Ends a sync between two files."""


class DocumentIndexer:
    """`roots` are added to those the library has; with none at all, `own` is read."""

    def __init__(
        self,
        library: Library,
        roots: Sequence[Path],
        own: Sequence[Path],
        *,
        limits: UploadLimits,
        meaning: VectorIndex | None = None,
        watch: bool = False,
    ) -> None:
        self.library = library
        self.searcher = Searcher(library, meaning)
        self.roots: list[Root] = []
        self.progress = SyncProgress()
        self.embedded = 0, 0
        """How many of how many passages have a vector."""
        self._given = roots
        self._own = own
        self._limits = limits
        self._meaning = meaning
        self._watch = watch
        self._was_empty = False
        self._read = asyncio.Event()
        self._reading = asyncio.Semaphore(_READING_AT_ONCE)
        self._adding = Counter[str]()
        self._changed = asyncio.Event()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._syncing: asyncio.Future[SyncProgress] | None = None

    async def open(self) -> None:
        """Raises StoreUnusableError."""
        await asyncio.to_thread(self.library.open)
        self.roots = await asyncio.to_thread(self._find_roots)
        self._was_empty = await asyncio.to_thread(self._is_empty)
        self._tasks.append(asyncio.create_task(self._keep_reading()))
        if self._meaning is not None:
            self._tasks.append(asyncio.create_task(self._keep_embedding(self._meaning)))

    async def close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        if self._syncing is not None:
            # A thread cannot be cancelled, only asked; the library must not be closed under it.
            with suppress(Exception):
                await self._syncing
        if self._meaning is not None:
            await self._meaning.close()
        await asyncio.to_thread(self.library.close)

    @property
    def is_reading(self) -> bool:
        return not self._read.is_set()

    async def settled(self) -> None:
        """Waits until all roots have been read once."""
        await self._read.wait()

    async def notices(self) -> AsyncIterator[str]:
        """What a question should know: that documents are still being read.

        Waits only if there was none to begin with: long for the first, and a moment for the rest, which for
        a small folder is all of it.
        """
        if not self.is_reading:
            return
        yield self._told()
        if self._was_empty:
            patience = _PATIENCE if await asyncio.to_thread(self._is_empty) else _MOMENT
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._read.wait()

    def _is_empty(self) -> bool:
        return self.library.count()[0] == 0

    def _told(self) -> str:
        if not self.progress.total:
            return "The documents are still being read."
        return f"The documents are still being read: {self.progress.done:,} of {self.progress.total:,} files."

    async def add(self, name: str, content: bytes, owner: str) -> Document:
        """Takes a document from somebody. Raises UnreadableDocumentError, TooManyDocumentsError."""
        kind = format_of(name)
        if kind is None:
            raise UnreadableDocumentError("its format is not known")
        # Counted before the first wait: whoever uploads many at once gets no more than one after the other.
        self._adding[owner] += 1
        try:
            there = await asyncio.to_thread(self.library.uploads, owner)
            if there + self._adding[owner] > self._limits.max_documents:
                raise TooManyDocumentsError(self._limits.max_documents)
            async with self._reading:
                parsed = await parse_in_sandbox(name, content, self._limits.seconds)
            document = await asyncio.to_thread(NewDocument, name, kind, content, parsed, owner=owner)
            await asyncio.to_thread(self.library.put, [document])
        finally:
            self._adding[owner] -= 1
        self._changed.set()
        return document.record

    async def remove(self, document_id: str) -> None:
        await asyncio.to_thread(self.library.remove, [document_id])

    async def _keep_reading(self) -> None:
        try:
            for root in self.roots:
                await self._sync(root)
            self._read.set()
            if self._watch:
                await self._watch_roots(self.roots)
        except _ClosingError:
            pass
        except Exception:
            # Whatever it was, questions are still answered, and the library must be closed in the end.
            logger.exception("the documents can no longer be kept up to date")
        finally:
            self._read.set()

    def _find_roots(self) -> list[Root]:
        known = {Path(path) for path, is_own in self.library.roots().items() if not is_own}
        known.update(path.resolve() for path in self._given)
        if known:
            return [Root(path) for path in sorted(known)]
        return [Root(path, is_own=True) for path in self._own]

    async def _sync(self, root: Root) -> None:
        self._syncing = asyncio.ensure_future(
            asyncio.to_thread(
                sync_root,
                self.library,
                root.path,
                max_bytes=self._limits.max_bytes,
                is_own=root.is_own,
                report=self._report,
            )
        )
        progress = await asyncio.shield(self._syncing)
        for name, why in progress.problems:
            logger.warning("%s was not indexed: %s", name, why)
        if progress.has_changed:
            self._changed.set()

    def _report(self, progress: SyncProgress) -> None:
        self.progress = progress
        if self._closing:
            raise _ClosingError

    async def _watch_roots(self, roots: list[Root]) -> None:
        # It takes a while to load, and only who watches needs it.

        by_path = {root.path: root for root in roots}
        async for changed in changed_roots(list(by_path)):
            for path in changed:
                await self._sync(by_path[path])

    async def _keep_embedding(self, meaning: VectorIndex) -> None:
        await self._read.wait()
        try:
            while True:
                self._changed.clear()
                await meaning.embed_missing(self._report_embedded)
                await self._changed.wait()
        except Exception:
            logger.exception("searching goes on by words only: the passages cannot be embedded")

    def _report_embedded(self, done: int, total: int) -> None:
        self.embedded = done, total


# Which roots have changed on disk, as it happens.


_STEP_MS = 200
_FIRST_MS = 1_000


async def changed_roots(roots: Sequence[Path]) -> AsyncIterator[list[Path]]:
    """Roots must be resolved. A burst of changes is told once, when it is over.

    All of them are told once at the beginning: what changed before the watch had begun, nobody has seen.
    """
    has_begun = False
    # Loaded when folders are watched, and not with every server.
    from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

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
