"""The library: the documents of all users and their passages, in one SQLite file.

`contract` has the interface. All methods block and may be called from any thread.
"""

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from turnwire.core.errors import DocumentNotFoundError, StoreUnusableError
from turnwire.retrieval.documents.document import Chunk, ParsedDocument, split_document
from turnwire.retrieval.index.bm25 import PassageLengths, Tokenizer
from turnwire.retrieval.index.database import IndexFile
from turnwire.retrieval.index.terms import content_terms, match_query, segment

HEADING_MARK = " › "
_RARE_COUNT, _RARE_SHARE = 10, 0.1
DOCUMENT_COLUMNS = "id, name, title, format, digest, bytes, characters, passages, indexed_at, pages, owner, root"
_VISIBLE = "(d.owner IS NULL OR d.owner = :owner)"
PASSAGE_COLUMNS = (
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

    @classmethod
    def copied(cls, record: Document, passages: Sequence[Passage]) -> "NewDocument":
        """Return a document of another library, with its whole passages, to be inserted as it is."""
        document = cls.__new__(cls)
        document.record = record
        document.chunks = [
            Chunk(each.text, each.start, each.end, each.line_start, each.line_end, each.headings, each.page)
            for each in passages
        ]
        return document

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

    is_shared = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IndexFile | None = None
        self._tokenizer: Tokenizer | None = None
        self._lengths: PassageLengths | None = None

    @property
    def location(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Open the index file. Raise StoreUnusableError if it cannot be used."""
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
        with self.file.reading() as database:
            if (lengths := self._scope(database, owner)) is not None:
                counts = [lengths.frequencies(database, self._tokens(term), owner) for term in terms]
                best = lengths.scores(counts, owner).most_common(limit)
                found = {passage.id: passage for passage in _select_passages(database, [n for n, _ in best], owner)}
                return [structs.replace(found[n], score=score) for n, score in best if n in found]
            rows = database.execute(
                f"SELECT {PASSAGE_COLUMNS}, -w.score FROM (SELECT rowid, bm25(words) AS score FROM words"
                " WHERE words MATCH :query ORDER BY score LIMIT :limit) w JOIN passages p ON p.id = w.rowid"
                " JOIN documents d ON d.id = p.document_id ORDER BY w.score",
                {"query": match_query(terms), "limit": limit},
            ).fetchall()
        return [passage_from(row) for row in rows]

    def weights(self, terms: Sequence[str], *, owner: str | None = None) -> dict[str, float]:
        """Return the inverse document frequency of each term among the passages that `owner` may read.

        Rare terms weigh the same, so that a term that never occurs does not outweigh all others.
        """
        with self.file.reading() as database:
            if (lengths := self._scope(database, owner)) is not None:
                tokens = {term: self._tokens(segment(term)) for term in terms}
                counts = {term: len(lengths.frequencies(database, tokens[term], owner)) for term in terms}
                return term_weights(lengths.total(owner), counts)
            (total,) = database.execute("SELECT count(*) FROM passages").fetchone()
            query = "SELECT count(*) FROM words WHERE words MATCH ?"
            counts = {term: database.execute(query, (match_query([segment(term)]),)).fetchone()[0] for term in terms}
            return term_weights(total, counts)

    def _tokens(self, term: str) -> list[str]:
        assert self._tokenizer is not None
        return self._tokenizer.tokens(term)

    def _scope(self, database: sqlite3.Connection, owner: str | None) -> PassageLengths | None:
        """Return the statistics to rank by if there are documents that `owner` may not read, and otherwise None."""
        query = "SELECT EXISTS (SELECT 1 FROM documents WHERE owner IS NOT NULL AND owner IS NOT ?)"
        if not database.execute(query, (owner,)).fetchone()[0]:
            return None
        (version,) = database.execute("SELECT count FROM changes").fetchone()
        if (lengths := self._lengths) is None or lengths.version != version:
            lengths = self._lengths = PassageLengths(version, database)
        return lengths

    def passages(self, ids: Sequence[int], *, owner: str | None = None) -> list[Passage]:
        """Return the passages with these ids that exist and are visible, in the order of `ids`."""
        with self.file.reading() as database:
            return _select_passages(database, ids, owner)

    def passage(self, chunk_id: str, *, owner: str | None = None) -> Passage:
        """Return the passage with this chunk id. Raise DocumentNotFoundError."""
        document_id, _, ordinal = chunk_id.rpartition(":")
        if ordinal.isdecimal() and len(ordinal) < 10:
            with self.file.reading() as database:
                row = database.execute(
                    f"SELECT {PASSAGE_COLUMNS}, 0.0 FROM passages p JOIN documents d ON d.id = p.document_id"
                    f" WHERE p.document_id = :id AND p.ordinal = :ordinal AND {_VISIBLE}",
                    {"id": document_id, "ordinal": int(ordinal), "owner": owner},
                ).fetchone()
            if row is not None:
                return passage_from(row)
        raise DocumentNotFoundError(chunk_id)

    def documents(
        self, *, owner: str | None = None, search: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Document]:
        """List documents by name. `search` filters names and titles; `after` is the last id of the previous page."""
        with self.file.reading() as database:
            rows = database.execute(
                f"SELECT {DOCUMENT_COLUMNS} FROM documents d WHERE {_VISIBLE}"
                " AND (:search IS NULL OR instr(lowered(name), :search) OR instr(lowered(title), :search))"
                " AND (:after IS NULL OR (name, id) > (SELECT name, id FROM documents WHERE id = :after))"
                " ORDER BY name, id LIMIT :limit",
                {"owner": owner, "search": search.lower() if search else None, "after": after, "limit": limit},
            ).fetchall()
        return [document_from(row) for row in rows]

    def document(self, document_id: str, *, owner: str | None = None) -> Document:
        """Return the document with this id. Raise DocumentNotFoundError."""
        with self.file.reading() as database:
            row = database.execute(
                f"SELECT {DOCUMENT_COLUMNS} FROM documents d WHERE id = :id AND {_VISIBLE}",
                {"id": document_id, "owner": owner},
            ).fetchone()
        if row is None:
            raise DocumentNotFoundError(document_id)
        return document_from(row)

    def document_passages(self, document_id: str, *, start: int = 0, end: int | None = None) -> list[Passage]:
        """Return the passages that overlap a range of the document, in order. The caller checks the owner."""
        with self.file.reading() as database:
            rows = database.execute(
                f"SELECT {PASSAGE_COLUMNS}, 0.0 FROM passages p JOIN documents d ON d.id = p.document_id"
                " WHERE p.document_id = ? AND p.char_start + length(p.text) > ? AND (? IS NULL OR p.char_start < ?)"
                " ORDER BY p.ordinal",
                (document_id, start, end, end),
            ).fetchall()
        return [passage_from(row, whole=True) for row in rows]

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

    def all_uploads(self) -> list[Document]:
        """Return the uploads of all owners."""
        with self.file.reading() as database:
            query = f"SELECT {DOCUMENT_COLUMNS} FROM documents WHERE owner IS NOT NULL ORDER BY indexed_at, id"
            return [document_from(row) for row in database.execute(query).fetchall()]

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

    def vector_owners(self, embedder: str) -> list[tuple[int, str | None, bool]]:
        """Return the id and owner of every passage, with True if it has a vector by this embedder."""
        with self.file.reading() as database:
            rows = database.execute(
                "SELECT p.id, d.owner, v.passage_id IS NOT NULL"
                " FROM passages p JOIN documents d ON d.id = p.document_id"
                " LEFT JOIN vectors v ON v.passage_id = p.id AND v.embedder = ? ORDER BY p.id",
                (embedder,),
            ).fetchall()
        return [(passage_id, owner, bool(has_vector)) for passage_id, owner, has_vector in rows]

    def vectors(self, embedder: str, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the vectors of these passages."""
        query = (
            "SELECT passage_id, vector FROM vectors WHERE embedder = ?"
            " AND passage_id IN (SELECT value FROM json_each(?)) ORDER BY passage_id"
        )
        with self.file.reading() as database:
            return database.execute(query, (embedder, json.dumps(list(ids)))).fetchall()

    def without_vector(self, embedder: str, limit: int) -> list[tuple[int, str]]:
        """Return the ids of passages that have no vector by this embedder, with the text to embed."""
        with self.file.reading() as database:
            return database.execute(
                # The title comes first, because an encoder truncates, and a passage alone may lack its subject.
                "SELECT p.id, d.title || char(10) || p.heading || char(10) || p.text"
                " FROM passages p JOIN documents d ON d.id = p.document_id WHERE NOT EXISTS"
                " (SELECT 1 FROM vectors v WHERE v.passage_id = p.id AND v.embedder = ?) ORDER BY p.id LIMIT ?",
                (embedder, limit),
            ).fetchall()

    def vector_counts(self, embedder: str) -> tuple[int, int]:
        """Return the number of passages with a vector, and of all passages."""
        with self.file.reading() as database:
            return database.execute(
                "SELECT (SELECT count(*) FROM vectors WHERE embedder = ?), (SELECT count(*) FROM passages)",
                (embedder,),
            ).fetchone()

    def put_vectors(self, embedder: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Keep vectors, except those of passages that were removed meanwhile."""
        with self.file.writing() as database:
            for passage_id, vector in vectors:
                database.execute(
                    "INSERT OR REPLACE INTO vectors SELECT id, ?, ? FROM passages WHERE id = ?",
                    (embedder, vector, passage_id),
                )


def term_weights(total: int, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the weight of each term. `counts` has the number of the `total` passages that contain it."""
    least = min(_RARE_COUNT, total * _RARE_SHARE)
    return {
        term: math.log(1 + (total - max(count, least) + 0.5) / (max(count, least) + 0.5))
        for term, count in counts.items()
    }


# Rows of the tables, inside the caller's transaction.


def document_from(row: Sequence[object]) -> Document:
    return Document(**dict(zip(DOCUMENT_COLUMNS.split(", "), row, strict=True)))  # pyright: ignore[reportArgumentType]


def passage_from(
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


def _select_passages(database: sqlite3.Connection, ids: Sequence[int], owner: str | None) -> list[Passage]:
    marks = ",".join("?" * len(ids))
    rows = database.execute(
        f"SELECT {PASSAGE_COLUMNS}, 0.0 FROM passages p JOIN documents d ON d.id = p.document_id"
        f" WHERE p.id IN ({marks}) AND (d.owner IS NULL OR d.owner = ?)",
        (*ids, owner),
    ).fetchall()
    passages = {row[0]: passage_from(row) for row in rows}
    return [passages[passage_id] for passage_id in ids if passage_id in passages]


def _insert_document(database: sqlite3.Connection, document: NewDocument) -> None:
    record = document.record
    values = [getattr(record, name) for name in DOCUMENT_COLUMNS.split(", ")]
    database.execute(f"INSERT INTO documents({DOCUMENT_COLUMNS}) VALUES ({','.join('?' * len(values))})", values)
    sequence = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'passages'").fetchone()
    first_id = sequence[0] + 1 if sequence else 1
    numbered = list(enumerate(document.chunks))
    database.executemany(
        "INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(first_id + n, record.id, n, HEADING_MARK.join(c.headings), c.text, *_position(c)) for n, c in numbered],
    )
    database.executemany(
        "INSERT INTO words(rowid, heading, body) VALUES (?, ?, ?)",
        [(first_id + n, segment(indexed_heading(record, c)), segment(c.text)) for n, c in numbered],
    )


def _position(chunk: Chunk) -> tuple[int, int, int, int, int | None]:
    return chunk.start, chunk.end, chunk.line_start, chunk.line_end, chunk.page


def indexed_heading(record: Document, chunk: Chunk) -> str:
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
