"""Synchronising the library with a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.retrieval.paper import opened, pdf, word
from turnwire.retrieval import indexer
from turnwire.retrieval.documents import parser
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.indexer import SyncProgress, sync_root

MAX_BYTES = 100_000


@pytest.fixture
def library(tmp_path: Path) -> Iterator[SqliteLibrary]:
    with opened(tmp_path / "documents.db") as library:
        yield library


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "folder").mkdir(parents=True)
    (folder / "a.md").write_text("# Green\n\nTea.")
    (folder / "b.txt").write_text("Black tea.")
    (folder / "folder" / "c.pdf").write_bytes(pdf("Oolong tea."))
    (folder / "folder" / "d.docx").write_bytes(word("White tea."))
    return folder


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files that are parsed."""
    names: list[str] = []
    parse = indexer.parse

    def counting(name: str, content: bytes) -> object:
        names.append(name)
        return parse(name, content)

    monkeypatch.setattr(indexer, "parse", counting)
    return names


def sync(library: SqliteLibrary, root: Path) -> SyncProgress:
    return sync_root(library, root, max_bytes=MAX_BYTES)


def counts(progress: SyncProgress) -> tuple[int, int, int, int]:
    return progress.added, progress.changed, progress.unchanged, progress.removed


def listed(library: SqliteLibrary) -> list[str]:
    return [document.name for document in library.documents()]


EVERY = ["a.md", "b.txt", "folder/c.pdf", "folder/d.docx"]


def test_sync_reads_every_file(library: SqliteLibrary, root: Path) -> None:
    progress = sync(library, root)
    assert counts(progress) == (4, 0, 0, 0)
    assert (progress.total, progress.done, progress.passages, progress.problems) == (4, 4, 4, [])
    assert progress.has_changed
    assert listed(library) == EVERY
    assert library.roots() == {str(root): False}
    assert len(library.search("tea")) == 4
    assert [document.root for document in library.documents()] == [str(root)] * 4


def test_unchanged_file_is_not_parsed_again(library: SqliteLibrary, root: Path, parsed: list[str]) -> None:
    sync(library, root)
    assert sorted(parsed) == EVERY
    parsed.clear()
    # A new modification time is no change.
    os.utime(root / "a.md", (1, 1))
    before = library.documents()
    progress = sync(library, root)
    assert counts(progress) == (0, 0, 4, 0)
    assert not progress.has_changed
    assert parsed == []
    assert library.documents() == before


def test_changed_file_is_parsed_again(library: SqliteLibrary, root: Path, parsed: list[str]) -> None:
    sync(library, root)
    parsed.clear()
    result = (root / "a.md").stat()
    (root / "a.md").write_text("# Green\n\nHat.")
    # An editor, or a copy, may keep size and time.
    os.utime(root / "a.md", ns=(result.st_atime_ns, result.st_mtime_ns))
    (root / "e.md").write_text("Herbal tea.")
    (root / "b.txt").unlink()
    assert counts(sync(library, root)) == (1, 1, 2, 1)
    assert sorted(parsed) == ["a.md", "e.md"]
    assert listed(library) == ["a.md", "e.md", "folder/c.pdf", "folder/d.docx"]
    assert library.search("black") == []
    assert library.search("hat")[0].title == "Green"


def test_moved_file_replaces_its_old_document(library: SqliteLibrary, root: Path) -> None:
    sync(library, root)
    (root / "a.md").rename(root / "folder" / "moved.md")
    assert counts(sync(library, root)) == (1, 0, 3, 1)
    assert len(library.search("green")) == 1


def test_unreadable_file_is_reported_and_the_rest_indexed(library: SqliteLibrary, root: Path) -> None:
    (root / "a-broken.pdf").write_bytes(b"no PDF")
    (root / "binary.md").write_bytes(b"\0\1\2")
    (root / "broken.docx").write_bytes(b"PK no archive")
    (root / "empty.md").write_text("\n")
    (root / "large.txt").write_text("x" * (MAX_BYTES + 1))
    (root / "link.md").symlink_to("/etc/hostname")
    os.mkfifo(root / "pipe.md")
    progress = sync(library, root)
    assert counts(progress) == (4, 0, 0, 0)
    assert (progress.done, progress.total) == (11, 11)
    assert dict(progress.problems) == {
        "a-broken.pdf": "it is not a valid PDF",
        "binary.md": "it is not text, whatever its name says",
        "broken.docx": "it is not a valid Word document",
        "empty.md": "there is no text in it",
        "large.txt": "it is over the limit of 100,000 bytes",
        "link.md": "it is a link to outside of the folder",
        "pipe.md": "it is not a regular file",
    }
    assert listed(library) == EVERY


def test_parser_error_does_not_stop_the_sync(
    library: SqliteLibrary, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser, "parse_markdown", lambda text: [][1])
    progress = sync(library, root)
    assert progress.problems == [("a.md", "it cannot be parsed (IndexError)")]
    assert listed(library) == EVERY[1:]


def test_unreadable_document_is_removed_until_it_is_readable(library: SqliteLibrary, root: Path) -> None:
    sync(library, root)
    (root / "a.md").write_bytes(b"\0")
    progress = sync(library, root)
    assert counts(progress) == (0, 0, 3, 1)
    assert [name for name, _ in progress.problems] == ["a.md"]
    assert listed(library) == EVERY[1:]
    (root / "a.md").write_text("Green again.")
    assert counts(sync(library, root)) == (1, 0, 3, 0)


def test_missing_root_leaves_no_documents(library: SqliteLibrary, root: Path) -> None:
    sync(library, root)
    root.rename(root.with_name("moved"))
    progress = sync(library, root)
    assert progress.removed == 4
    assert progress.problems == [("documents", "No such file or directory")]
    assert library.documents() == []


def test_sync_of_one_root_keeps_the_documents_of_another(library: SqliteLibrary, root: Path) -> None:
    other = root.with_name("other")
    other.mkdir()
    (other / "a.md").write_text("Green tea as well.")
    sync(library, root)
    assert counts(sync(library, other)) == (1, 0, 0, 0)
    assert counts(sync(library, root)) == (0, 0, 4, 0)
    assert listed(library) == ["a.md", *EVERY]


def test_single_file_can_be_a_root(library: SqliteLibrary, root: Path) -> None:
    assert counts(sync(library, root / "a.md")) == (1, 0, 0, 0)
    assert counts(sync(library, root / "a.md")) == (0, 0, 1, 0)
    assert listed(library) == ["a.md"]


def test_root_is_identified_by_its_resolved_path(
    library: SqliteLibrary, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(library, root)
    link = root.with_name("link")
    link.symlink_to(root)
    monkeypatch.chdir(root)
    assert counts(sync(library, link)) == counts(sync(library, Path())) == (0, 0, 4, 0)
    assert list(library.roots()) == [str(root)]


def test_progress_is_reported_after_every_file(library: SqliteLibrary, root: Path) -> None:
    (root / "b-broken.pdf").write_bytes(b"no PDF")
    result: list[SyncProgress] = []
    sync_root(library, root, max_bytes=MAX_BYTES, report=lambda progress: result.append(structs.replace(progress)))
    assert [(progress.done, progress.total) for progress in result] == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5), (5, 5)]
    assert [progress.added for progress in result] == [1, 1, 2, 3, 4, 4]


def test_interrupted_sync_keeps_committed_batches(
    library: SqliteLibrary, root: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "_BATCH_DOCUMENTS", 2)

    def stop(progress: SyncProgress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync_root(library, root, max_bytes=MAX_BYTES, report=stop)
    assert listed(library) == EVERY[:2]
    parsed.clear()
    assert counts(sync(library, root)) == (2, 0, 2, 0)
    assert parsed == EVERY[2:]
    assert listed(library) == EVERY


def test_interrupted_sync_removes_nothing(library: SqliteLibrary, root: Path) -> None:
    sync(library, root)
    (root / "b.txt").unlink()

    def stop(progress: SyncProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync_root(library, root, max_bytes=MAX_BYTES, report=stop)
    assert listed(library) == EVERY


def test_large_sync_is_written_in_batches(library: SqliteLibrary, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "_BATCH_PASSAGES", 10)
    sizes: list[int] = []
    put = library.put
    monkeypatch.setattr(library, "put", lambda documents: (sizes.append(len(documents)), put(documents)))
    for number in range(9):
        (root / f"e{number}.txt").write_text("tea. " * 1_000)
    sync(library, root)
    assert sum(sizes) == 13
    assert max(sizes) < 13


def test_sync_without_changes_keeps_the_version(library: SqliteLibrary, root: Path) -> None:
    sync(library, root)
    version = library.version()
    sync(library, root)
    # Who holds vectors in memory loads them again for a new version.
    assert library.version() == version


def test_synced_root_replaces_own_documentation_that_came_back(
    library: SqliteLibrary, root: Path, tmp_path: Path
) -> None:
    (own := tmp_path / "own.md").write_text("A log for every turn.")
    sync(library, root)
    # A server that started before the root was indexed reads its own documentation again.
    sync_root(library, own, max_bytes=MAX_BYTES, is_own=True)
    sync(library, root)
    assert listed(library) == EVERY
