"""The file of the library: transactions, concurrency, and files that cannot be used.

`tests/contracts/test_document_library.py` has what every library promises.
"""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.retrieval.paper import note, opened, rows
from tests.serving import PATIENCE
from turnwire.core.errors import StoreUnusableError
from turnwire.retrieval.index.sqlite import SqliteLibrary

LONG = "\n\n".join(f"# Part {part}\n\n{f'Sentence {part} about oolong. ' * 60}" for part in range(4))


@pytest.fixture
def library(tmp_path: Path) -> Iterator[SqliteLibrary]:
    with opened(tmp_path / "documents.db") as library:
        yield library


def names(library: SqliteLibrary, query: str, owner: str | None = None, limit: int = 10) -> list[str]:
    found = library.search(query, owner=owner, limit=limit)
    return [library.document(passage.document_id, owner=owner).name for passage in found]


def check(library: SqliteLibrary) -> None:
    """Assert that every table has the same passages."""
    passages = rows(library, "SELECT id FROM passage ORDER BY id")
    assert rows(library, "SELECT rowid FROM words ORDER BY rowid") == passages
    assert rows(library, "PRAGMA foreign_key_check") == []
    counted = "(SELECT count(*) FROM passage p WHERE p.document_id = d.id)"
    assert rows(library, f"SELECT id FROM document d WHERE passages != {counted}") == []
    with library.file.writing() as database:
        database.execute("INSERT INTO words(words) VALUES ('integrity-check')")


def test_removed_document_leaves_no_rows(library: SqliteLibrary) -> None:
    library.put([note(LONG, "a.md"), note("Oolong too", "b.md")])
    with library.file.writing() as database:
        database.execute("INSERT INTO passage_vector SELECT id, 'toy', x'00000000' FROM passage")
    (first, second) = library.documents()
    library.remove([first.id, "nothing"])
    assert [passage.document_id for passage in library.search("oolong")] == [second.id]
    assert rows(library, "SELECT count(*) FROM passage_vector") == [(1,)]
    check(library)
    library.remove([second.id])
    for table in ("document", "passage", "words", "passage_vector"):
        assert rows(library, f"SELECT count(*) FROM {table}") == [(0,)]
    # No row of the full-text index is left either.
    assert rows(library, "SELECT count(*) FROM words WHERE words MATCH 'oolong'") == [(0,)]


def test_failed_commit_does_not_block_the_next(library: SqliteLibrary) -> None:
    with library.file.writing() as database:
        database.execute("CREATE TABLE parents(id INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE children(id REFERENCES parents(id) DEFERRABLE INITIALLY DEFERRED)")
    # As on a full disk, where only the commit fails.
    with pytest.raises(sqlite3.IntegrityError), library.file.writing() as database:
        database.execute("INSERT INTO children VALUES (1)")
    library.put([note("Tea", "a.md")])
    assert names(library, "tea") == ["a.md"]


def test_error_after_an_automatic_rollback_is_raised(library: SqliteLibrary) -> None:
    # As SQLite does on a full disk before it raises.
    with pytest.raises(ZeroDivisionError), library.file.writing() as database:
        database.execute("ROLLBACK").fetchall().append(1 / 0)
    library.put([note("Tea", "a.md")])


# Concurrency


def test_reader_sees_a_whole_document_or_none(library: SqliteLibrary) -> None:
    expected = {len(note(LONG, "a.md").chunks), 1}
    library.put([note(LONG, "a.md")])
    over = threading.Event()

    def read() -> int:
        reads = 0
        while not over.is_set():
            with library.file.reading() as database:
                database.execute("BEGIN")
                (count,) = database.execute("SELECT count(*) FROM passage").fetchone()
                (reported,) = database.execute("SELECT passages FROM document").fetchone()
                (words,) = database.execute("SELECT count(*) FROM words").fetchone()
                database.execute("COMMIT")
            assert count == reported == words
            assert count in expected
            assert library.search("oolong tea")
            reads += 1
        return reads

    with ThreadPoolExecutor(4) as threads:
        reading = [threads.submit(read) for _ in range(4)]
        for number in range(40):
            library.put([note(LONG if number % 2 else "Oolong tea", "a.md")])
        over.set()
        assert all(item.result(timeout=PATIENCE) > 0 for item in reading)
    check(library)


WRITER = """
import sys
from pathlib import Path
from tests.retrieval.paper import note, opened
who = sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
with opened(Path(sys.argv[1])) as library:
    library.add_root("/" + who)
    for number in range(25):
        text = f"Tea of {who}, number {number}. " * 80
        library.put([note(text, "shared.md"), note(text, f"{number}.md", root="/" + who)])
        if number % 5 == 4:
            library.remove([library.digests("/" + who)[f"{number}.md"][0]])
"""


@pytest.mark.process
def test_two_processes_write_concurrently(tmp_path: Path) -> None:
    path = tmp_path / "documents.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), who],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in ("anna", "bert")
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            _, errors = writer.communicate(timeout=PATIENCE)
            assert writer.returncode == 0, errors
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    with opened(path) as library:
        assert library.roots() == {"/anna": False, "/bert": False}
        assert library.count()[0] == 2 * 20 + 1
        assert library.version() == 2 * (1 + 25 + 5)
        check(library)


# The file


def test_reopened_library_has_its_documents(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "documents.db"
    with opened(path) as library:
        library.put([note("Tea", "a.md")])
        library.open()
    with opened(path) as library:
        assert names(library, "tea") == ["a.md"]


def test_file_of_another_version_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "documents.db"
    with opened(path) as library:
        library.put([note("Tea", "a.md")])
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA user_version = 99")
    with pytest.raises(
        StoreUnusableError, match="it has version 99, this Turnwire knows 2; move it away and index again"
    ):
        SqliteLibrary(path).open()
    # The refused open holds no lock.
    database.execute("BEGIN IMMEDIATE")
    assert database.execute("SELECT count(*) FROM document").fetchone() == (1,)
    database.execute("ROLLBACK")
    database.close()


@pytest.mark.parametrize("content", [b"This is no database. " * 100, b"SQLite format 3\0" + bytes(100)])
def test_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "documents.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnusableError, match=r"documents\.db"):
        SqliteLibrary(path).open()
    assert path.read_bytes() == content


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StoreUnusableError):
        SqliteLibrary(tmp_path / "file" / "documents.db").open()


def test_closed_library_raises_store_unusable(tmp_path: Path) -> None:
    library = SqliteLibrary(tmp_path / "documents.db")
    for ask in (lambda: library.search("tea"), library.documents, lambda: library.put([]), library.roots):
        with pytest.raises(StoreUnusableError, match="it is not open"):
            ask()
    library.close()
    library.open()
    library.close()
    library.close()
    with pytest.raises(StoreUnusableError, match="it is not open"):
        library.search("tea")
