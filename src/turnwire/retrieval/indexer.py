"""The indexer keeps a library up to date while a server runs: it reads and watches roots, takes uploads, embeds.

The heavy work happens in threads or in the sandbox. A question waits for it only if the library was empty at first.
"""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from turnwire.core.errors import (
    EmbedderError,
    EmbedderUnusableError,
    StoreError,
    TooManyDocumentsError,
    UnreadableDocumentError,
)
from turnwire.core.log.codec import clean_text
from turnwire.core.people.fairness import FairSlots
from turnwire.retrieval.documents.files import FoundFile, find_files, read_file
from turnwire.retrieval.documents.parser import format_of, parse
from turnwire.retrieval.documents.sandbox import parse_in_sandbox
from turnwire.retrieval.index.library import Document, DocumentLibrary, NewDocument, digest_of
from turnwire.retrieval.index.searcher import Searcher, VectorIndex
from turnwire.retrieval.settings import DocumentSettings

logger = logging.getLogger("turnwire.retrieval")

# How long a question waits for an empty library, and for one that has some documents by then.
_EMPTY_WAIT_SECONDS = 30.0
_PARTIAL_WAIT_SECONDS = 2.0
_MAX_PARALLEL_UPLOADS = 2
# Of one principal; each keeps its file in memory meanwhile.
_MAX_WAITING_UPLOADS = 8
# A transaction stays small enough that another writer need not wait for long.
_BATCH_PASSAGES = 2_000
_BATCH_DOCUMENTS = 200
_RETRY_SECONDS = 60.0
_WATCH_STEP_MS = 200
_WATCH_START_MS = 1_000


class SyncProgress(Struct):
    """Counts of one synchronisation; `problems` are the unreadable files and the reasons."""

    total: int = 0
    done: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    passages: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    @property
    def has_changed(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def answers_users(name: str) -> bool:
    """Return False for a page of Turnwire's own documentation that is for contributors."""
    return not name.startswith(("adr/", "research/", "architecture.md", "designs.md", "releasing.md"))


def sync_root(
    library: DocumentLibrary,
    root: Path,
    *,
    max_bytes: int,
    is_own: bool = False,
    report: Callable[[SyncProgress], None] = lambda _: None,
) -> SyncProgress:
    """Synchronise one root. `report` is called in this thread after every file, and may raise to stop between files."""
    root = root.resolve()
    # Turnwire may be installed in another folder on each machine.
    key, progress = f"turnwire/{root.name}" if is_own and library.is_shared else str(root), SyncProgress()
    library.add_root(key, is_own=is_own)
    files = [file for file in find_files(root) if not is_own or answers_users(file.name)]
    indexed = library.digests(key)
    seen: set[str] = set()
    progress.total = len(files)
    batch: list[NewDocument] = []
    for file in files:
        try:
            if library.is_shared and clean_text(file.name) != file.name:
                raise UnreadableDocumentError("its name is not valid text")
            document = _read(file, root, key, indexed, max_bytes)
        except UnreadableDocumentError as error:
            progress.problems.append((file.name, str(error)))
        else:
            seen.add(file.name)
            if document is None:
                progress.unchanged += 1
            else:
                batch.append(document)
                progress.passages += len(document.chunks)
                if file.name in indexed:
                    progress.changed += 1
                else:
                    progress.added += 1
        progress.done += 1
        if len(batch) >= _BATCH_DOCUMENTS or sum(len(document.chunks) for document in batch) >= _BATCH_PASSAGES:
            library.put(batch)
            batch = []
        report(progress)
    removed = [document_id for name, (document_id, _) in indexed.items() if name not in seen]
    # Every transaction changes the version, after which all vectors are loaded again.
    if batch:
        library.put(batch)
    if removed:
        library.remove(removed)
    progress.removed = len(removed)
    report(progress)
    return progress


def _read(
    file: FoundFile, root: Path, key: str, indexed: dict[str, tuple[str, str]], max_bytes: int
) -> NewDocument | None:
    """Return the document, or None if it has not changed. Raise UnreadableDocumentError."""
    if file.problem is not None:
        raise UnreadableDocumentError(file.problem)
    content = read_file(file.path, root, max_bytes)
    if file.name in indexed and indexed[file.name][1] == digest_of(content):
        return None
    return NewDocument(file.name, format_of(file.name) or "", content, parse(file.name, content), root=key)


class Root(Struct, frozen=True):
    """A folder or file to index; `is_own` marks Turnwire's own documentation."""

    path: Path
    is_own: bool = False


class _ClosingError(Exception):
    """Raised between two files to end a sync."""


class DocumentIndexer:
    """Background indexer of a library. `roots` are added to the library's own roots; without any root `own` is read."""

    def __init__(
        self,
        library: DocumentLibrary,
        roots: Sequence[Path],
        own: Sequence[Path],
        *,
        settings: DocumentSettings,
        meaning: VectorIndex | None = None,
        watch: bool = False,
    ) -> None:
        self.library = library
        self.searcher = Searcher(library, meaning)
        self.roots: list[Root] = []
        self.progress = SyncProgress()
        self.embedded = 0, 0
        """The number of passages with a vector, and of all passages."""
        self._configured = roots
        self._own = own
        self._settings = settings
        self._meaning = meaning
        self._watch = watch
        self._was_empty = False
        self._has_read = asyncio.Event()
        self._sandbox_slots = FairSlots("uploads", slots=_MAX_PARALLEL_UPLOADS, each=1, waiting=_MAX_WAITING_UPLOADS)
        self._uploading = Counter[str]()
        self._changed = asyncio.Event()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._syncing: asyncio.Future[SyncProgress] | None = None

    async def open(self) -> None:
        """Open the library and begin to index. Raise StoreUnusableError."""
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
            # A thread cannot be cancelled, and the library must not be closed while it writes.
            with suppress(Exception):
                await self._syncing
        if self._meaning is not None:
            await self._meaning.close()
        await asyncio.to_thread(self.library.close)

    @property
    def is_reading(self) -> bool:
        return not self._has_read.is_set()

    async def settled(self) -> None:
        """Wait until all roots have been read once."""
        await self._has_read.wait()

    async def notices(self) -> AsyncIterator[str]:
        """Yield a status text while documents are still being read.

        Wait only if the library was empty at first: long for the first documents, and a moment for the rest, which is
        enough for a small folder.
        """
        if not self.is_reading:
            return
        yield self._progress_text()
        if self._was_empty:
            seconds = _EMPTY_WAIT_SECONDS if await asyncio.to_thread(self._is_empty) else _PARTIAL_WAIT_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_read.wait()

    def _is_empty(self) -> bool:
        return self.library.count()[0] == 0

    def _progress_text(self) -> str:
        if not self.progress.total:
            return "The documents are still being read."
        return f"The documents are still being read: {self.progress.done:,} of {self.progress.total:,} files."

    async def add(self, name: str, content: bytes, owner: str) -> Document:
        """Index an uploaded document. Raise UnreadableDocumentError, TooManyDocumentsError or TooManyRequestsError."""
        format_name = format_of(name)
        if format_name is None:
            raise UnreadableDocumentError("its format is not known")
        # Counted before the first await, so that parallel uploads cannot exceed the limit.
        self._uploading[owner] += 1
        try:
            stored = await asyncio.to_thread(self.library.uploads, owner)
            if stored + self._uploading[owner] > self._settings.max_uploads:
                raise TooManyDocumentsError(self._settings.max_uploads)
            async with self._sandbox_slots.slot(owner):
                parsed = await parse_in_sandbox(name, content, self._settings.timeout)
            document = await asyncio.to_thread(NewDocument, name, format_name, content, parsed, owner=owner)
            await asyncio.to_thread(self.library.put, [document])
        finally:
            self._uploading[owner] -= 1
            self._uploading += Counter()  # Removes those without an upload.
        self._changed.set()
        return document.record

    async def remove(self, document_id: str) -> None:
        await asyncio.to_thread(self.library.remove, [document_id])

    async def _keep_reading(self) -> None:
        try:
            for root in self.roots:
                await self._sync(root)
            self._has_read.set()
            if self._watch:
                await self._watch_roots(self.roots)
        except _ClosingError:
            pass
        except Exception:
            # Questions are still answered from what is indexed.
            logger.exception("the indexer has stopped: the documents are no longer kept up to date")
        finally:
            self._has_read.set()

    def _find_roots(self) -> list[Root]:
        known = {Path(path) for path, is_own in self.library.roots().items() if not is_own}
        paths = {path.resolve() for path in self._configured}
        if not self.library.is_shared:
            paths |= known
        # The folders of a shared library may be on other machines: those read them.
        if paths or known:
            return [Root(path) for path in sorted(paths)]
        return [Root(path, is_own=True) for path in self._own]

    async def _sync(self, root: Root) -> None:
        """Synchronise a root, and retry while the database fails."""
        while True:
            try:
                return await self._sync_once(root)
            except (StoreError, sqlite3.Error) as error:
                logger.warning("%s could not be indexed, and is tried again: %s", root.path, error)
                # Questions are answered from what is indexed meanwhile.
                self._has_read.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _sync_once(self, root: Root) -> None:
        self._syncing = asyncio.ensure_future(
            asyncio.to_thread(
                sync_root,
                self.library,
                root.path,
                max_bytes=self._settings.max_bytes,
                is_own=root.is_own,
                report=self._report,
            )
        )
        progress = await asyncio.shield(self._syncing)
        for name, reason in progress.problems:
            logger.warning("%s was not indexed: %s", name, reason)
        if progress.has_changed:
            self._changed.set()

    def _report(self, progress: SyncProgress) -> None:
        self.progress = progress
        if self._closing:
            raise _ClosingError

    async def _watch_roots(self, roots: list[Root]) -> None:
        by_path = {root.path: root for root in roots}
        async for changed in changed_roots(list(by_path)):
            for path in changed:
                await self._sync(by_path[path])

    async def _keep_embedding(self, meaning: VectorIndex) -> None:
        await self._has_read.wait()
        try:
            while True:
                self._changed.clear()
                try:
                    await meaning.embed_missing(self._report_embedded)
                except EmbedderUnusableError:
                    raise
                except (EmbedderError, StoreError, sqlite3.Error) as error:
                    logger.warning("some passages have no vector yet, and the search is by words only: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    await self._wait_for_change()
        except Exception:
            logger.exception("the passages cannot be embedded; the search is by words only")

    async def _wait_for_change(self) -> None:
        # Another process may die before it has embedded what it has added.
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS if self.library.is_shared else None):
                await self._changed.wait()

    def _report_embedded(self, done: int, total: int) -> None:
        self.embedded = done, total


async def changed_roots(roots: Sequence[Path]) -> AsyncIterator[list[Path]]:
    """Yield the roots, which must be resolved paths, that have changed on disk; a burst of changes counts once.

    All roots are yielded at the beginning, because changes before the watch has begun go unseen.
    """
    # Imported only by a server that watches.
    from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

    has_begun = False
    async for changes in awatch(
        *await asyncio.to_thread(_folders, roots),
        ignore_permission_denied=True,
        step=_WATCH_STEP_MS,
        rust_timeout=_WATCH_START_MS,
        yield_on_timeout=True,
    ):
        paths = [Path(path) for _, path in changes]
        changed = [root for root in roots if not has_begun or any(path.is_relative_to(root) for path in paths)]
        has_begun = True
        if changed:
            yield changed


def _folders(roots: Sequence[Path]) -> set[Path]:
    """Return the existing folders to watch, because a missing one would end the watch over the others."""
    return {folder for root in roots if (folder := root if root.is_dir() else root.parent).is_dir()}
