"""The library: search, ownership, transactions, lists and roots."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.retrieval.paper import ROOT, note, opened, pdf, rows
from tests.serving import PATIENCE
from turnwire.core.errors import DocumentNotFoundError, StoreUnusableError
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.index.library import Library, NewDocument

LONG = "\n\n".join(f"# Part {part}\n\n{f'Sentence {part} about oolong. ' * 60}" for part in range(4))


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with opened(tmp_path / "documents.db") as library:
        yield library


def names(library: Library, query: str, owner: str | None = None, limit: int = 10) -> list[str]:
    found = library.search(query, owner=owner, limit=limit)
    return [library.document(passage.document_id, owner=owner).name for passage in found]


def check(library: Library) -> None:
    """Assert that every table has the same passages."""
    passages = rows(library, "SELECT id FROM passages ORDER BY id")
    assert rows(library, "SELECT rowid FROM words ORDER BY rowid") == passages
    assert rows(library, "SELECT count(*) FROM vectors WHERE passage_id NOT IN (SELECT id FROM passages)") == [(0,)]
    assert rows(library, "SELECT count(*) FROM passages WHERE document_id NOT IN (SELECT id FROM documents)") == [(0,)]
    counted = "(SELECT count(*) FROM passages p WHERE p.document_id = d.id)"
    assert rows(library, f"SELECT id FROM documents d WHERE passages != {counted}") == []
    with library.file.writing() as database:
        database.execute("INSERT INTO words(words) VALUES ('integrity-check')")


# Searching


def test_best_passage_comes_first_with_the_highest_score(library: Library) -> None:
    library.put(
        [note("Tea. Tea. Green tea.", "tea.md"), note("A ship with tea in it, and much else to see.", "ship.md")]
    )
    found = library.search("green tea")
    assert [passage.title for passage in found] == ["tea", "ship"]
    assert found[0].score > found[1].score > 0
    assert library.search("zebra") == library.search("?") == library.search("") == []


def test_title_and_headings_match_every_passage(library: Library) -> None:
    library.put([note("# Oolong\n\nIt is hot.\n\n## Brewing\n\nFor three minutes.", "a.md")])
    assert library.search("oolong minutes")[0].headings == ("Oolong", "Brewing")
    assert library.search("brewing")[0].heading == "Oolong › Brewing"


def test_passage_has_its_location(library: Library) -> None:
    library.put([note(LONG, "a.md")])
    document = library.documents()[0]
    passages = library.document_passages(document.id)
    assert document.passages == len(passages) > 4
    assert document.characters == len(LONG)
    for ordinal, passage in enumerate(passages):
        assert (passage.ordinal, passage.chunk_id) == (ordinal, f"{document.id}:{ordinal}")
        reported = library.passage(passage.chunk_id)
        assert LONG[reported.start : reported.end] == reported.text == passage.text.rstrip()
        assert LONG.count("\n", 0, reported.start) + 1 == reported.line_start
        assert library.passages([passage.id]) == [reported]
    assert "".join(passage.text for passage in passages) == LONG


def test_passage_has_its_page(library: Library) -> None:
    content = pdf("Green tea", "Black tea")
    library.put([NewDocument("tea.pdf", "pdf", content, parse("tea.pdf", content), root=ROOT)])
    assert [passage.page for passage in library.search("black")] == [2]
    assert library.documents()[0].pages == 2


def test_passages_of_a_range_overlap_it(library: Library) -> None:
    library.put([note(LONG, "a.md")])
    (document,) = library.documents()
    every = library.document_passages(document.id)
    border = every[1].start
    assert library.document_passages(document.id, start=border) == every[1:]
    assert library.document_passages(document.id, start=border - 1) == every
    assert library.document_passages(document.id, end=border) == every[:1]
    assert library.document_passages(document.id, start=border, end=border + 1) == every[1:2]
    assert library.document_passages(document.id, start=len(LONG)) == []


def test_passages_have_the_order_of_the_ids(library: Library) -> None:
    library.put([note(LONG, "a.md")])
    ids = [passage.id for passage in library.document_passages(library.documents()[0].id)]
    requests = [ids[2], 10_000, ids[0], ids[1]]
    assert [passage.id for passage in library.passages(requests)] == [ids[2], ids[0], ids[1]]
    assert library.passages([]) == []


@pytest.mark.parametrize(
    "chunk_id", ["", "x", ":", "x:0", "{id}", "{id}:", "{id}:99", "{id}:-1", "{id}:1e3", "{id}:0:0", "{id}:99999999999"]
)
def test_missing_passage_raises_not_found(library: Library, chunk_id: str) -> None:
    library.put([note("Tea", "a.md")])
    with pytest.raises(DocumentNotFoundError):
        library.passage(chunk_id.format(id=library.documents()[0].id))


def test_rare_word_weighs_more_than_a_common_one(library: Library) -> None:
    library.put(
        [note(f"Tea number {number}, {'oolong' if number == 3 else 'green'}", f"{number}.md") for number in range(9)]
    )
    weights = library.weights(["tea", "oolong", "zebra", "绿茶", "don't", '"'])
    assert 0 < weights["tea"] < weights["oolong"] < weights["zebra"]
    assert len(weights) == 6


# Ownership


def test_owner_sees_shared_and_own_documents(library: Library) -> None:
    library.put(
        [
            note("Tea for all", "all.md"),
            note("Tea of Anna", "anna.md", owner="anna"),
            note("Tea of Bert", "bert.md", owner="bert"),
        ]
    )
    assert sorted(names(library, "tea", "anna")) == ["all.md", "anna.md"]
    assert sorted(names(library, "tea", "bert")) == ["all.md", "bert.md"]
    assert names(library, "tea") == names(library, "tea", "carl") == names(library, "tea", "") == ["all.md"]
    assert [document.name for document in library.documents(owner="anna")] == ["all.md", "anna.md"]
    assert [document.name for document in library.documents()] == ["all.md"]
    (anna,) = [document for document in library.documents(owner="anna") if document.owner]
    passage = library.search("anna", owner="anna")[0]
    for stranger in ("bert", None, ""):
        with pytest.raises(DocumentNotFoundError):
            library.document(anna.id, owner=stranger)
        with pytest.raises(DocumentNotFoundError):
            library.passage(passage.chunk_id, owner=stranger)
        assert library.passages([passage.id], owner=stranger) == []
    assert library.passage(passage.chunk_id, owner="anna").text == "Tea of Anna"
    assert (library.uploads("anna"), library.uploads("carl")) == (1, 0)


def test_own_document_is_found_behind_many_better_ones_of_others(library: Library) -> None:
    library.put([note("tea tea tea", f"{number}.md", owner="bert") for number in range(300)])
    library.put(
        [
            note("Some words, and among them tea, and more words after it", f"a{number}.md", owner="anna")
            for number in range(3)
        ]
    )
    assert names(library, "tea", "anna", limit=2) == ["a0.md", "a1.md"]
    assert len(names(library, "tea", "anna")) == 3
    assert names(library, "tea") == []


def test_uploads_with_the_same_content_or_name_are_separate(library: Library) -> None:
    library.put([note("Tea", owner="anna"), note("Tea", owner="bert"), note("Other tea", owner="anna")])
    library.put([note("Tea", owner="anna")])
    assert (library.uploads("anna"), library.uploads("bert")) == (2, 1)
    check(library)


# Writing


def test_document_replaces_the_one_with_its_id(library: Library) -> None:
    library.put([note(LONG, "a.md"), note("Ship", "b.md")])
    before = library.documents()[0]
    library.put([note("Only green tea", "a.md")])
    after = library.documents()[0]
    assert (after.id, after.passages) == (before.id, 1)
    assert library.search("oolong") == []
    assert names(library, "green") == ["a.md"]
    assert library.count() == (2, 2)
    check(library)


def test_removed_document_leaves_no_rows(library: Library) -> None:
    library.put([note(LONG, "a.md"), note("Oolong too", "b.md")])
    with library.file.writing() as database:
        database.execute("INSERT INTO vectors SELECT id, 'toy', x'00000000' FROM passages")
    (first, second) = library.documents()
    library.remove([first.id, "nothing"])
    assert [passage.document_id for passage in library.search("oolong")] == [second.id]
    assert rows(library, "SELECT count(*) FROM vectors") == [(1,)]
    check(library)
    library.remove([second.id])
    for table in ("documents", "passages", "words", "vectors"):
        assert rows(library, f"SELECT count(*) FROM {table}") == [(0,)]
    # No row of the full-text index is left either.
    assert rows(library, "SELECT count(*) FROM words WHERE words MATCH 'oolong'") == [(0,)]


def test_failed_write_changes_nothing(library: Library) -> None:
    library.put([note("Tea", "a.md")])
    version = library.version()

    def broken() -> Iterator[NewDocument]:
        yield note("Ship", "a.md")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        library.put(broken())
    assert names(library, "tea") == ["a.md"]
    assert library.version() == version
    library.put([note("Ship", "b.md")])
    check(library)


def test_failed_commit_does_not_block_the_next(library: Library) -> None:
    with library.file.writing() as database:
        database.execute("CREATE TABLE parents(id INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE children(id REFERENCES parents(id) DEFERRABLE INITIALLY DEFERRED)")
    library.file._writer.execute("PRAGMA foreign_keys = ON")
    # As on a full disk, where only the commit fails.
    with pytest.raises(sqlite3.IntegrityError), library.file.writing() as database:
        database.execute("INSERT INTO children VALUES (1)")
    library.put([note("Tea", "a.md")])
    assert names(library, "tea") == ["a.md"]


def test_error_after_an_automatic_rollback_is_raised(library: Library) -> None:
    # As SQLite does on a full disk before it raises.
    with pytest.raises(ZeroDivisionError), library.file.writing() as database:
        database.execute("ROLLBACK").fetchall().append(1 / 0)
    library.put([note("Tea", "a.md")])


def test_version_changes_with_every_write_of_any_process(library: Library) -> None:
    seen = {library.version()}
    library.put([note("Tea", "a.md")])
    seen.add(library.version())
    with opened(library.path) as other:
        other.remove([library.documents()[0].id])
    seen.add(library.version())
    assert len(seen) == 3
    assert library.version() == max(seen)


# Lists


def test_documents_are_listed_by_name_in_pages(library: Library) -> None:
    library.put([note("Tea", f"{number}.md") for number in range(7)])
    library.put([note("Tea", "3.md", owner="anna")])
    seen: list[str] = []
    after = None
    while page := library.documents(owner="anna", after=after, limit=3):
        assert len(page) <= 3
        seen += [document.name for document in page]
        after = page[-1].id
    assert seen == ["0.md", "1.md", "2.md", "3.md", "3.md", "4.md", "5.md", "6.md"]
    assert library.documents(after="nothing") == []


def test_document_search_ignores_case_in_name_and_title(library: Library) -> None:
    library.put(
        [note("# Grüner Tee\n\nx", "Übersicht.md"), note("# Ship\n\nx", "folder/TEA_100%.md"), note("x", "c.md")]
    )

    def listed(search: str) -> list[str]:
        return [document.name for document in library.documents(search=search)]

    assert listed("übersicht") == listed("ÜBER") == listed("Übersicht.md") == listed("GRÜNER") == ["Übersicht.md"]
    assert listed("tea_1") == listed("ship") == listed("100%") == listed("FOLDER/") == ["folder/TEA_100%.md"]
    assert listed("%") == ["folder/TEA_100%.md"]
    assert listed("' OR 1=1 --") == []
    assert len(listed("")) == 3


# Roots


def test_forgotten_root_loses_its_documents_only(library: Library) -> None:
    library.add_root("/a")
    library.add_root("/b")
    library.put(
        [
            note("Tea", "1.md", root="/a"),
            note("Tea", "2.md", root="/a"),
            note("Tea", "3.md", root="/b"),
            note("Tea", owner="anna"),
        ]
    )
    assert library.roots() == {"/a": False, "/b": False}
    assert set(library.digests("/a")) == {"1.md", "2.md"}
    assert library.forget_root("/a") == 2
    assert library.forget_root("/a") == 0
    assert library.roots() == {"/b": False}
    assert library.count() == (2, 2)
    check(library)


def test_other_root_replaces_the_own_documentation(library: Library) -> None:
    library.add_root("/own", is_own=True)
    library.put([note("Tea", "own.md", root="/own")])
    assert library.roots() == {"/own": True}
    library.add_root("/a")
    assert library.roots() == {"/a": False}
    assert library.documents() == []
    check(library)


def test_own_documentation_added_as_a_root_is_kept(library: Library) -> None:
    library.add_root("/own", is_own=True)
    library.put([note("Tea", "own.md", root="/own")])
    library.add_root("/own")
    assert library.roots() == {"/own": False}
    assert library.count() == (1, 1)


# Concurrency


def test_reader_sees_a_whole_document_or_none(library: Library) -> None:
    expected = {len(note(LONG, "a.md").chunks), 1}
    library.put([note(LONG, "a.md")])
    over = threading.Event()

    def read() -> int:
        reads = 0
        while not over.is_set():
            with library.file.reading() as database:
                database.execute("BEGIN")
                (count,) = database.execute("SELECT count(*) FROM passages").fetchone()
                (reported,) = database.execute("SELECT passages FROM documents").fetchone()
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
        StoreUnusableError, match="it has version 99, this Turnwire knows 1; move it away and index again"
    ):
        Library(path).open()
    # The refused open holds no lock.
    database.execute("BEGIN IMMEDIATE")
    assert database.execute("SELECT count(*) FROM documents").fetchone() == (1,)
    database.execute("ROLLBACK")
    database.close()


@pytest.mark.parametrize("content", [b"This is no database. " * 100, b"SQLite format 3\0" + bytes(100)])
def test_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "documents.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnusableError, match=r"documents\.db"):
        Library(path).open()
    assert path.read_bytes() == content


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StoreUnusableError):
        Library(tmp_path / "file" / "documents.db").open()


def test_closed_library_raises_store_unusable(tmp_path: Path) -> None:
    library = Library(tmp_path / "documents.db")
    for ask in (lambda: library.search("tea"), library.documents, lambda: library.put([]), library.roots):
        with pytest.raises(StoreUnusableError, match="it is not open"):
            ask()
    library.close()
    library.open()
    library.close()
    library.close()
    with pytest.raises(StoreUnusableError, match="it is not open"):
        library.search("tea")
