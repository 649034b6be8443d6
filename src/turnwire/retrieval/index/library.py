"""The library: the documents of all users and their passages. Reads see public documents and those of `owner`.

All methods block and may be called from any thread; async code calls them through `asyncio.to_thread`.
"""

import hashlib
import math
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from turnwire.core.errors import DocumentNotFoundError, StoreUnusableError
from turnwire.retrieval.documents.document import Chunk, ParsedDocument, split_document
from turnwire.retrieval.index.database import IndexFile
from turnwire.retrieval.index.terms import content_terms, match_query, segment

HEADING_MARK = " › "
_RARE_COUNT, _RARE_SHARE = 10, 0.1
_DOCUMENT = "id, name, title, format, digest, bytes, characters, passages, indexed_at, pages, owner, root"
_VISIBLE = "(d.owner IS NULL OR d.owner = :owner)"
_PASSAGE = (
    "p.id, p.document_id, p.ordinal, d.title, p.text, p.char_start, p.char_end, p.line_start, p.line_end,"
    " p.heading, p.page"
)


class Document(Struct, frozen=True, kw_only=True):
    """An indexed document. `name` is relative to its root; `owner` is None for a document that everyone may read."""

    id: str
    name: str
    title: str
    format: str
    digest: str
    bytes: int
    characters: int
    passages: int
    indexed_at: int
    pages: int | None = None
    owner: str | None = None
    root: str | None = None


class Passage(Struct, frozen=True, kw_only=True):
    """A piece of a document, its text from `start` to `end`; `score` is that of the search that found it."""

    id: int
    document_id: str
    ordinal: int
    title: str
    text: str
    start: int
    end: int
    line_start: int
    line_end: int
    headings: tuple[str, ...] = ()
    page: int | None = None
    score: float = 0.0

    @property
    def chunk_id(self) -> str:
        return f"{self.document_id}:{self.ordinal}"

    @property
    def heading(self) -> str | None:
        return HEADING_MARK.join(self.headings) or None


class NewDocument:
    """A parsed document with its chunks, ready to be inserted."""

    __slots__ = ("chunks", "record")

    def __init__(
        self,
        name: str,
        format_name: str,
        content: bytes,
        parsed: ParsedDocument,
        *,
        root: str | None = None,
        owner: str | None = None,
    ) -> None:
        self.chunks: list[Chunk] = split_document(parsed)
        digest = digest_of(content)
        self.record = Document(
            id=document_id(root, name) if owner is None else document_id(owner, digest + name),
            name=name,
            title=parsed.title or Path(name).stem,
            format=format_name,
            digest=digest,
            bytes=len(content),
            characters=len(parsed.text),
            passages=len(self.chunks),
            indexed_at=int(time.time() * 1000),
            pages=parsed.pages,
            owner=owner,
            root=root,
        )

    def passages(self) -> list[Passage]:
        """Return the passages as a search returns them, but without the ids that the index gives them."""
        return [
            Passage(
                id=0,
                document_id=self.record.id,
                ordinal=ordinal,
                title=self.record.title,
                text=chunk.text[: chunk.end - chunk.start],
                start=chunk.start,
                end=chunk.end,
                line_start=chunk.line_start,
                line_end=chunk.line_end,
                headings=chunk.headings,
                page=chunk.page,
            )
            for ordinal, chunk in enumerate(self.chunks)
        ]


def document_id(scope: str | None, name: str) -> str:
    """Return the stable id of a document; `scope` is its root, or the owner who uploaded it."""
    return hashlib.sha256(f"{scope or ''}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Library:
    """The documents and passages in one index file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IndexFile | None = None

    def open(self) -> None:
        """Open the index file. Raise StoreUnusableError if it cannot be used."""
        if self._file is None:
            self._file = IndexFile(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def file(self) -> IndexFile:
        if self._file is None:
            raise StoreUnusableError(str(self.path), "it is not open")
        return self._file

    def put(self, documents: Iterable[NewDocument]) -> None:
        """Insert documents in one transaction, replacing those with the same ids."""
        with self.file.writing() as database:
            for document in documents:
                _delete_document(database, document.record.id)
                _insert_document(database, document)

    def remove(self, document_ids: Iterable[str]) -> None:
        with self.file.writing() as database:
            for document_id in document_ids:
                _delete_document(database, document_id)

    def search(self, query: str, *, owner: str | None = None, limit: int = 10) -> list[Passage]:
        """Return the passages that match the query's words best, best first; a higher score is better."""
        terms = content_terms(query)
        if not terms:
            return []
        parameters = {"query": match_query(terms), "owner": owner, "limit": limit, "more": limit * 4}
        ranked = "SELECT rowid, bm25(words) AS score FROM words WHERE words MATCH :query ORDER BY score LIMIT "
        statement = (
            f"SELECT {_PASSAGE}, -w.score FROM (%s) w JOIN passages p ON p.id = w.rowid"
            f" JOIN documents d ON d.id = p.document_id WHERE {_VISIBLE} ORDER BY w.score LIMIT :limit"
        )
        with self.file.reading() as database:
            rows = database.execute(statement % (ranked + ":more"), parameters).fetchall()
            if len(rows) < limit:
                # Too many of the best matches belong to other owners: search without a limit.
                rows = database.execute(statement % (ranked + "-1"), parameters).fetchall()
        return [_passage(row) for row in rows]

    def weights(self, terms: Sequence[str]) -> dict[str, float]:
        """Return the inverse document frequency of each term among the passages.

        Rare terms weigh the same, so that a term that never occurs does not outweigh all others.
        """
        with self.file.reading() as database:
            (total,) = database.execute("SELECT count(*) FROM passages").fetchone()
            least = min(_RARE_COUNT, total * _RARE_SHARE)
            weights: dict[str, float] = {}
            for term in terms:
                query = match_query([segment(term)])
                (count,) = database.execute("SELECT count(*) FROM words WHERE words MATCH ?", (query,)).fetchone()
                count = max(count, least)
                weights[term] = math.log(1 + (total - count + 0.5) / (count + 0.5))
            return weights

    def passages(self, ids: Sequence[int], *, owner: str | None = None) -> list[Passage]:
        """Return the passages with these ids that exist and are visible, in the order of `ids`."""
        marks = ",".join("?" * len(ids))
        with self.file.reading() as database:
            rows = database.execute(
                f"SELECT {_PASSAGE}, 0.0 FROM passages p JOIN documents d ON d.id = p.document_id"
                f" WHERE p.id IN ({marks}) AND (d.owner IS NULL OR d.owner = ?)",
                (*ids, owner),
            ).fetchall()
        passages = {row[0]: _passage(row) for row in rows}
        return [passages[passage_id] for passage_id in ids if passage_id in passages]

    def passage(self, chunk_id: str, *, owner: str | None = None) -> Passage:
        """Return the passage with this chunk id. Raise DocumentNotFoundError."""
        document_id, _, ordinal = chunk_id.rpartition(":")
        if ordinal.isdecimal() and len(ordinal) < 10:
            with self.file.reading() as database:
                row = database.execute(
                    f"SELECT {_PASSAGE}, 0.0 FROM passages p JOIN documents d ON d.id = p.document_id"
                    f" WHERE p.document_id = :id AND p.ordinal = :ordinal AND {_VISIBLE}",
                    {"id": document_id, "ordinal": int(ordinal), "owner": owner},
                ).fetchone()
            if row is not None:
                return _passage(row)
        raise DocumentNotFoundError(chunk_id)

    def documents(
        self, *, owner: str | None = None, search: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Document]:
        """List documents by name. `search` filters names and titles; `after` is the last id of the previous page."""
        with self.file.reading() as database:
            rows = database.execute(
                f"SELECT {_DOCUMENT} FROM documents d WHERE {_VISIBLE}"
                " AND (:search IS NULL OR instr(lowered(name), :search) OR instr(lowered(title), :search))"
                " AND (:after IS NULL OR (name, id) > (SELECT name, id FROM documents WHERE id = :after))"
                " ORDER BY name, id LIMIT :limit",
                {"owner": owner, "search": search.lower() if search else None, "after": after, "limit": limit},
            ).fetchall()
        return [_document(row) for row in rows]

    def document(self, document_id: str, *, owner: str | None = None) -> Document:
        """Return the document with this id. Raise DocumentNotFoundError."""
        with self.file.reading() as database:
            row = database.execute(
                f"SELECT {_DOCUMENT} FROM documents d WHERE id = :id AND {_VISIBLE}",
                {"id": document_id, "owner": owner},
            ).fetchone()
        if row is None:
            raise DocumentNotFoundError(document_id)
        return _document(row)

    def document_passages(self, document_id: str, *, start: int = 0, end: int | None = None) -> list[Passage]:
        """Return the passages that overlap a range of the document, in order. The caller checks the owner."""
        with self.file.reading() as database:
            rows = database.execute(
                f"SELECT {_PASSAGE}, 0.0 FROM passages p JOIN documents d ON d.id = p.document_id"
                " WHERE p.document_id = ? AND p.char_start + length(p.text) > ? AND (? IS NULL OR p.char_start < ?)"
                " ORDER BY p.ordinal",
                (document_id, start, end, end),
            ).fetchall()
        return [_passage(row, whole=True) for row in rows]

    def digests(self, root: str) -> dict[str, tuple[str, str]]:
        """Return the id and digest of every document below a root, by name."""
        with self.file.reading() as database:
            rows = database.execute("SELECT name, id, digest FROM documents WHERE root = ?", (root,)).fetchall()
        return {name: (document_id, digest) for name, document_id, digest in rows}

    def roots(self) -> dict[str, bool]:
        """Return every indexed root with True for Turnwire's own documentation."""
        with self.file.reading() as database:
            rows = database.execute("SELECT path, is_own FROM roots ORDER BY path").fetchall()
        return {path: bool(is_own) for path, is_own in rows}

    def add_root(self, path: str, *, is_own: bool = False) -> None:
        """Add a root. Any other root replaces Turnwire's own documentation."""
        roots = self.roots()
        if roots.get(path) is is_own and (is_own or True not in roots.values()):
            return
        with self.file.writing() as database:
            database.execute("INSERT OR REPLACE INTO roots VALUES (?, ?)", (path, is_own))
            if not is_own:
                for (own,) in database.execute("SELECT path FROM roots WHERE is_own").fetchall():
                    _delete_root(database, own)

    def forget_root(self, path: str) -> int:
        """Remove a root and its documents. Return the number of documents."""
        with self.file.writing() as database:
            return _delete_root(database, path)

    def uploads(self, owner: str) -> int:
        """Return the number of documents that an owner has uploaded."""
        with self.file.reading() as database:
            return database.execute("SELECT count(*) FROM documents WHERE owner = ?", (owner,)).fetchone()[0]

    def count(self) -> tuple[int, int]:
        """Return the number of documents and of passages."""
        with self.file.reading() as database:
            return database.execute(
                "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM passages)"
            ).fetchone()

    def version(self) -> int:
        """Return a number that changes with every write of any process."""
        with self.file.reading() as database:
            return database.execute("SELECT count FROM changes").fetchone()[0]


# Rows of the tables, inside the caller's transaction.


def _document(row: Sequence[object]) -> Document:
    return Document(**dict(zip(_DOCUMENT.split(", "), row, strict=True)))  # pyright: ignore[reportArgumentType]


def _passage(
    row: tuple[int, str, int, str, str, int, int, int, int, str, int | None, float], *, whole: bool = False
) -> Passage:
    passage_id, document, ordinal, title, text, start, end, line_start, line_end, heading, page, score = row
    return Passage(
        id=passage_id,
        document_id=document,
        ordinal=ordinal,
        title=title,
        text=text if whole else text[: end - start],
        start=start,
        end=end,
        line_start=line_start,
        line_end=line_end,
        headings=tuple(heading.split(HEADING_MARK)) if heading else (),
        page=page,
        score=score,
    )


def _insert_document(database: sqlite3.Connection, document: NewDocument) -> None:
    record = document.record
    values = [getattr(record, name) for name in _DOCUMENT.split(", ")]
    database.execute(f"INSERT INTO documents({_DOCUMENT}) VALUES ({','.join('?' * len(values))})", values)
    sequence = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'passages'").fetchone()
    first_id = sequence[0] + 1 if sequence else 1
    numbered = list(enumerate(document.chunks))
    database.executemany(
        "INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(first_id + n, record.id, n, HEADING_MARK.join(c.headings), c.text, *_position(c)) for n, c in numbered],
    )
    database.executemany(
        "INSERT INTO words(rowid, heading, body) VALUES (?, ?, ?)",
        [(first_id + n, segment(_indexed_heading(record, c)), segment(c.text)) for n, c in numbered],
    )


def _position(chunk: Chunk) -> tuple[int, int, int, int, int | None]:
    return chunk.start, chunk.end, chunk.line_start, chunk.line_end, chunk.page


def _indexed_heading(record: Document, chunk: Chunk) -> str:
    """Return the searchable heading, which includes the title, so that a search for it finds every passage."""
    if chunk.headings and chunk.headings[0] == record.title:
        return " ".join(chunk.headings)
    return " ".join((record.title, *chunk.headings))


def _delete_document(database: sqlite3.Connection, document_id: str) -> int:
    if database.execute("SELECT 1 FROM documents WHERE id = ?", (document_id,)).fetchone() is None:
        return 0
    for table, key in (("words", "rowid"), ("vectors", "passage_id")):
        database.execute(
            f"DELETE FROM {table} WHERE {key} IN (SELECT id FROM passages WHERE document_id = ?)", (document_id,)
        )
    database.execute("DELETE FROM passages WHERE document_id = ?", (document_id,))
    return database.execute("DELETE FROM documents WHERE id = ?", (document_id,)).rowcount


def _delete_root(database: sqlite3.Connection, root: str) -> int:
    rows = database.execute("SELECT id FROM documents WHERE root = ?", (root,)).fetchall()
    database.execute("DELETE FROM roots WHERE path = ?", (root,))
    return sum(_delete_document(database, document_id) for (document_id,) in rows)
