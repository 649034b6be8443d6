"""Bringing the library up to date with a folder: what is new or changed is read, what is gone leaves."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.files import FoundFile, find_files, read_file
from turnwire.retrieval.documents.parser import format_of, parse
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.writer import NewDocument, digest_of

# So much is written in one transaction: few enough that another writer need not wait for long.
_BATCH_PASSAGES = 2_000
_BATCH_DOCUMENTS = 200


class SyncProgress(Struct):
    """How far it is; `problems` are files that could not be read, and why."""

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
    most_bytes: int,
    is_own: bool = False,
    report: Callable[[SyncProgress], None] = lambda _: None,
) -> SyncProgress:
    """`report` is called after every file, in this thread; what it raises ends the work between two files."""
    root = root.resolve()
    key, progress = str(root), SyncProgress()
    library.add_root(key, is_own=is_own)
    files = list(find_files(root))
    known = library.digests(key)
    seen: set[str] = set()
    progress.total = len(files)
    batch: list[NewDocument] = []
    for found in files:
        try:
            document = _read(found, root, known, most_bytes)
        except UnreadableDocumentError as error:
            progress.problems.append((found.name, str(error)))
        else:
            seen.add(found.name)
            if document is None:
                progress.unchanged += 1
            else:
                batch.append(document)
                progress.passages += len(document.chunks)
                if found.name in known:
                    progress.changed += 1
                else:
                    progress.added += 1
        progress.done += 1
        if len(batch) >= _BATCH_DOCUMENTS or sum(len(one.chunks) for one in batch) >= _BATCH_PASSAGES:
            library.put(batch)
            batch = []
        report(progress)
    library.put(batch)
    gone = [document_id for name, (document_id, _) in known.items() if name not in seen]
    library.remove(gone)
    progress.removed = len(gone)
    report(progress)
    return progress


def _read(found: FoundFile, root: Path, known: dict[str, tuple[str, str]], most_bytes: int) -> NewDocument | None:
    """The document, or None if it is the one that is known. Raises UnreadableDocumentError."""
    if found.problem is not None:
        raise UnreadableDocumentError(found.problem)
    content = read_file(found.path, root, most_bytes)
    if found.name in known and known[found.name][1] == digest_of(content):
        return None
    return NewDocument(found.name, format_of(found.name) or "", content, parse(found.name, content), root=str(root))
