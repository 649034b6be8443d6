"""The library in one SQLite file."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from turnwire.core.errors import StoreUnusableError
from turnwire.retrieval.index.bm25 import PassageLengths, Tokenizer
from turnwire.retrieval.index.database import IndexFile
from turnwire.retrieval.index.library import (
    HEADING_MARK,
    PASSAGE_COLUMNS,
    DocumentLibrary,
    IndexConnection,
    NewDocument,
    Passage,
    T,
    passage_from,
    term_weights,
)
from turnwire.retrieval.index.terms import content_terms, match_query, segment


class SqliteLibrary(DocumentLibrary):
    """The documents and passages in one index file."""

    is_shared = False
    in_list = "IN (SELECT value FROM json_each(?))"
    position = "instr"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IndexFile | None = None
        self._tokenizer: Tokenizer | None = None
        self._lengths: PassageLengths | None = None

    @property
    def location(self) -> str:
        return str(self.path)

    def open(self) -> None:
        if self._file is None:
            self._file = IndexFile(self.path)
            self._tokenizer = Tokenizer()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._tokenizer is not None:
            self._tokenizer.close()
            self._tokenizer = None

    @property
    def file(self) -> IndexFile:
        if self._file is None:
            raise StoreUnusableError(str(self.path), "it is not open")
        return self._file

    def search(self, query: str, *, owner: str | None = None, limit: int = 10) -> list[Passage]:
        terms = content_terms(query)
        if not terms:
            return []
        with self.file.reading() as database:
            if (lengths := self._scope(database, owner)) is None:
                rows = database.execute(
                    f"SELECT {PASSAGE_COLUMNS}, -w.score FROM (SELECT rowid, bm25(words) AS score FROM words"
                    " WHERE words MATCH ? ORDER BY score LIMIT ?) w JOIN passage p ON p.id = w.rowid"
                    " JOIN document d ON d.id = p.document_id ORDER BY w.score",
                    (match_query(terms), limit),
                ).fetchall()
                return [passage_from(row, score) for *row, score in rows]
            counts = [lengths.frequencies(database, self._tokens(term), owner) for term in terms]
            best = dict(lengths.scores(counts, owner).most_common(limit))
        return [structs.replace(each, score=best[each.id]) for each in self.passages([*best], owner=owner)]

    def weights(self, terms: Sequence[str], *, owner: str | None = None) -> dict[str, float]:
        with self.file.reading() as database:
            if (lengths := self._scope(database, owner)) is not None:
                tokens = {term: self._tokens(segment(term)) for term in terms}
                counts = {term: len(lengths.frequencies(database, tokens[term], owner)) for term in terms}
                return term_weights(lengths.total(owner), counts)
            (total,) = database.execute("SELECT count(*) FROM passage").fetchone()
            query = "SELECT count(*) FROM words WHERE words MATCH ?"
            counts = {term: database.execute(query, (match_query([segment(term)]),)).fetchone()[0] for term in terms}
            return term_weights(total, counts)

    def _tokens(self, term: str) -> list[str]:
        assert self._tokenizer is not None
        return self._tokenizer.tokens(term)

    def _scope(self, database: sqlite3.Connection, owner: str | None) -> PassageLengths | None:
        """Return the statistics to rank by if there are documents that `owner` may not read, and otherwise None."""
        query = "SELECT EXISTS (SELECT 1 FROM document WHERE owner IS NOT NULL AND owner IS NOT ?)"
        if not database.execute(query, (owner,)).fetchone()[0]:
            return None
        (version,) = database.execute("SELECT version FROM index_version").fetchone()
        if (lengths := self._lengths) is None or lengths.version != version:
            lengths = self._lengths = PassageLengths(version, database)
        return lengths

    def _read(self, query: str, *values: object) -> list[Any]:
        with self.file.reading() as database:
            texts = [json.dumps(value) if isinstance(value, list) else value for value in values]
            return database.execute(query, texts).fetchall()

    def _write(self, work: Callable[[IndexConnection], T]) -> T:
        with self.file.writing() as database:
            return work(database)

    def _insert(self, database: IndexConnection, document: NewDocument) -> None:
        self._insert_record(database, document.record)
        last_id = next(iter(database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'passage'")), (0,))[0]
        for ordinal, chunk in enumerate(document.chunks):
            passage_id = last_id + 1 + ordinal
            values = (
                *(passage_id, document.record.id, ordinal, HEADING_MARK.join(chunk.headings), chunk.text),
                *(chunk.start, chunk.end, chunk.line_start, chunk.line_end, chunk.page),
            )
            database.execute("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            database.execute(
                "INSERT INTO words(rowid, heading, body) VALUES (?, ?, ?)",
                (passage_id, segment(document.indexed_heading(chunk)), segment(chunk.text)),
            )
