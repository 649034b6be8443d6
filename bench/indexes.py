"""The indexes under test: Turnwire's library, and the baseline, a bare FTS5 table with the same tokenizer.

Both are files with the same settings of SQLite. The baseline has only the words: no documents, positions, owners or
text.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from turnwire.retrieval.documents.files import find_files
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.index.library import NewDocument
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.index.terms import TOKENIZER, content_terms, match_query
from turnwire.retrieval.indexer import sync_root

Row = tuple[str, str]

MAX_BYTES = 20 * 1024 * 1024
LIMIT = 8
_BLANK_LINE = re.compile(r"\n[ \t]*\n")


class BareTable:
    """The baseline: an FTS5 table of paragraphs."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute("PRAGMA cache_size = -32000")
        self._database.execute(f'CREATE VIRTUAL TABLE words USING fts5(heading, body, tokenize="{TOKENIZER}")')

    def close(self) -> None:
        self._database.close()

    def put(self, rows: Sequence[Row]) -> int:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO words VALUES (?, ?)", rows)
        self._database.execute("COMMIT")
        return len(rows)

    def read(self, folder: Path) -> int:
        """Add every paragraph of every file."""
        texts = (path.read_text("utf-8") for path in sorted(folder.rglob("*.md")))
        return self.put([("", paragraph) for text in texts for paragraph in _BLANK_LINE.split(text)])

    def read_again(self, folder: Path) -> None:
        """Read the bytes of every file, as a check for changes must."""
        for path in sorted(folder.rglob("*.md")):
            path.read_bytes()

    def search(self, match: str) -> list[tuple[int, float]]:
        return self._database.execute(
            "SELECT rowid, bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY score LIMIT ?", (match, LIMIT)
        ).fetchall()


@contextmanager
def bare_table() -> Iterator[BareTable]:
    with TemporaryDirectory(prefix="bench-") as folder:
        table = BareTable(Path(folder, "words.db"))
        try:
            yield table
        finally:
            table.close()


@contextmanager
def opened_library() -> Iterator[SqliteLibrary]:
    with TemporaryDirectory(prefix="bench-") as folder:
        library = SqliteLibrary(Path(folder, "documents.db"))
        library.open()
        try:
            yield library
        finally:
            library.close()


def read_folder(library: SqliteLibrary, folder: Path) -> int:
    """Index a folder and return the number of new passages."""
    return sync_root(library, folder, max_bytes=MAX_BYTES).passages


def cut_documents(folder: Path) -> list[NewDocument]:
    """Return the parsed documents of a folder, in the library's order."""
    return [
        NewDocument(file.name, "markdown", content, parse(file.name, content), root=str(folder))
        for file in find_files(folder)
        for content in (file.path.read_bytes(),)
    ]


def word_rows(library: SqliteLibrary) -> list[Row]:
    """Return the rows of a library's own FTS5 table."""
    with library.file.reading() as database:
        return database.execute("SELECT heading, body FROM words ORDER BY rowid").fetchall()


def as_match(question: str) -> str:
    return match_query(content_terms(question))
