"""Synchronising the library with a folder: read new and changed files, remove the documents of deleted ones."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.files import FoundFile, find_files, read_file
from turnwire.retrieval.documents.parser import format_of, parse
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.writer import NewDocument, digest_of

# A transaction stays small enough that another writer need not wait for long.
_BATCH_PASSAGES = 2_000
_BATCH_DOCUMENTS = 200


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


def sync_root(
    library: Library,
    root: Path,
    *,
    max_bytes: int,
    is_own: bool = False,
    report: Callable[[SyncProgress], None] = lambda _: None,
) -> SyncProgress:
    """Synchronise one root. `report` is called in this thread after every file, and may raise to stop between files."""
    root = root.resolve()
    key, progress = str(root), SyncProgress()
    library.add_root(key, is_own=is_own)
    files = list(find_files(root))
    indexed = library.digests(key)
    seen: set[str] = set()
    progress.total = len(files)
    batch: list[NewDocument] = []
    for file in files:
        try:
            document = _read(file, root, indexed, max_bytes)
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
    library.put(batch)
    removed = [document_id for name, (document_id, _) in indexed.items() if name not in seen]
    library.remove(removed)
    progress.removed = len(removed)
    report(progress)
    return progress


def _read(file: FoundFile, root: Path, indexed: dict[str, tuple[str, str]], max_bytes: int) -> NewDocument | None:
    """Return the document, or None if it has not changed. Raise UnreadableDocumentError."""
    if file.problem is not None:
        raise UnreadableDocumentError(file.problem)
    content = read_file(file.path, root, max_bytes)
    if file.name in indexed and indexed[file.name][1] == digest_of(content):
        return None
    return NewDocument(file.name, format_of(file.name) or "", content, parse(file.name, content), root=str(root))
