"""The library: the documents of all users and their passages.

SQLite and PostgreSQL have the same tables. What they do alike is here; each has its own way to search and to write.
"""

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from msgspec import Struct, structs

from turnwire.core.errors import DocumentNotFoundError
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.documents.document import Chunk, ParsedDocument, split_document

T = TypeVar("T")
HEADING_MARK = " › "
_RARE_COUNT, _RARE_SHARE = 10, 0.1
_DOCUMENT_COLUMNS = "id, name, title, format, digest, bytes, characters, passages, indexed_at, pages, owner, root"
PASSAGE_COLUMNS = (
    "p.id, p.document_id, p.ordinal, d.title, p.text, p.char_start, p.char_end, p.line_start, p.line_end,"
    " p.heading, p.page"
)
VISIBLE = "(d.owner IS NULL OR d.owner = ?)"
_MAX_INTEGER = 2**31 - 1


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


class Passage(Chunk, frozen=True, kw_only=True):
    """A chunk of an indexed document. `text` is without the white space after it, except among all of a document's
    passages. `score` is that of the search that found it.
    """

    id: int
    document_id: str
    ordinal: int
    title: str
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
        self.chunks: Sequence[Chunk] = split_document(parsed)
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
        document.chunks = passages
        return document

    def passages(self) -> list[Passage]:
        """Return the passages as a search returns them, but without the ids that the index gives them."""
        return [
            Passage(
                **structs.asdict(structs.replace(chunk, text=chunk.text[: chunk.end - chunk.start])),
                id=0,
                document_id=self.record.id,
                ordinal=ordinal,
                title=self.record.title,
            )
            for ordinal, chunk in enumerate(self.chunks)
        ]

    def indexed_heading(self, chunk: Chunk) -> str:
        """Return the searchable heading, which includes the title, so that a search for it finds every passage."""
        if chunk.headings and chunk.headings[0] == self.record.title:
            return " ".join(chunk.headings)
        return " ".join((self.record.title, *chunk.headings))


def document_id(scope: str | None, name: str) -> str:
    """Return the stable id of a document; `scope` is its root, or the owner who uploaded it."""
    return hashlib.sha256(f"{scope or ''}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class IndexConnection(Protocol):
    """A connection inside a transaction. `?` stands for a value."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Iterable[Any]: ...


class DocumentLibrary(ABC):
    """The documents of all users and their passages. Reads see public documents and those of `owner`, and no score or
    weight depends on any other.

    All methods block and may be called from any thread; async code calls them through `asyncio.to_thread`. They raise
    sqlite3.Error, OSError or StoreError if the database fails.
    """

    is_shared: ClassVar[bool]
    """True if processes on other machines use the same library, which may have other folders."""
    in_list: ClassVar[str]
    """SQL for membership in a list of numbers."""
    position: ClassVar[str]
    """The SQL function that returns where one text is in another, from 1 on."""

    @property
    @abstractmethod
    def location(self) -> str: ...

    @abstractmethod
    def open(self) -> None:
        """Open the library, creating it if needed. Raise StoreUnusableError."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def search(self, query: str, *, owner: str | None = None, limit: int = 10) -> list[Passage]:
        """Return the passages that match the query's words best, best first; a higher score is better."""

    @abstractmethod
    def weights(self, terms: Sequence[str], *, owner: str | None = None) -> dict[str, float]:
        """Return the inverse document frequency of each term among the passages.

        Rare terms weigh the same, so that a term that never occurs does not outweigh all others.
        """

    @abstractmethod
    def _read(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""

    @abstractmethod
    def _write(self, work: Callable[[IndexConnection], T]) -> T:
        """Return the result of `work`, a transaction that no other writer's overlaps; it changes the version.

        It may be called again if the connection is lost.
        """

    @abstractmethod
    def _insert(self, database: IndexConnection, document: NewDocument) -> None: ...

    @staticmethod
    def _insert_record(database: IndexConnection, record: Document, **more: int) -> None:
        values: dict[str, Any] = {name: getattr(record, name) for name in _DOCUMENT_COLUMNS.split(", ")}
        values |= {"folded_name": record.name.lower(), "folded_title": record.title.lower(), **more}
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        database.execute(f"INSERT INTO document ({columns}) VALUES ({marks})", [*values.values()])

    # Documents

    def put(self, documents: Iterable[NewDocument]) -> None:
        """Insert documents in one transaction, replacing those with the same ids."""
        new = list(documents)

        def write(database: IndexConnection) -> None:
            for document in new:
                record = document.record
                row = next(iter(database.execute("SELECT digest FROM document WHERE id = ?", (record.id,))), None)
                # One that another process has indexed meanwhile stays, because its vectors would be lost.
                if row is None or row[0] != record.digest:
                    database.execute("DELETE FROM document WHERE id = ?", (record.id,))
                    self._insert(database, document)

        self._write(write)

    def remove(self, document_ids: Iterable[str]) -> None:
        ids = list(document_ids)

        def write(database: IndexConnection) -> None:
            for each in ids:
                database.execute("DELETE FROM document WHERE id = ?", (each,))

        self._write(write)

    def documents(
        self, *, owner: str | None = None, search: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Document]:
        """List documents by name. `search` filters names and titles; `after` is the last id of the previous page."""
        conditions, values = [VISIBLE], list[object]([owner])
        if search:
            conditions.append(f"({self.position}(folded_name, ?) > 0 OR {self.position}(folded_title, ?) > 0)")
            # A search for a NUL character alone becomes an empty text, which every name contains; NULL is in none.
            values += [clean_text(search).lower() or None] * 2
        if after is not None:
            conditions.append("(name, id) > (SELECT name, id FROM document WHERE id = ?)")
            values.append(after)
        return self._documents(f"{' AND '.join(conditions)} ORDER BY name, id LIMIT ?", *values, limit)

    def document(self, document_id: str, *, owner: str | None = None) -> Document:
        """Return the document with this id. Raise DocumentNotFoundError."""
        found = self._documents(f"id = ? AND {VISIBLE}", document_id, owner)
        if not found:
            raise DocumentNotFoundError(document_id)
        return found[0]

    def uploads(self, owner: str) -> int:
        """Return the number of documents that an owner has uploaded."""
        return self._read("SELECT count(*) FROM document WHERE owner = ?", owner)[0][0]

    def all_uploads(self) -> list[Document]:
        """Return the uploads of all owners."""
        return self._documents("owner IS NOT NULL ORDER BY indexed_at, id")

    def count(self) -> tuple[int, int]:
        """Return the number of documents and of passages."""
        return self._read("SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM passage)")[0]

    def version(self) -> int:
        """Return a number that changes with every write of any process."""
        return self._read("SELECT version FROM index_version")[0][0]

    def _documents(self, condition: str, *values: object) -> list[Document]:
        rows = self._read(f"SELECT {_DOCUMENT_COLUMNS} FROM document d WHERE {condition}", *values)
        return [Document(**dict(zip(_DOCUMENT_COLUMNS.split(", "), row, strict=True))) for row in rows]

    # Passages

    def passages(self, ids: Sequence[int], *, owner: str | None = None) -> list[Passage]:
        """Return the passages with these ids that exist and are visible, in the order of `ids`."""
        found = self._passages(f"p.id {self.in_list} AND {VISIBLE}", list(ids), owner)
        passages = {passage.id: passage for passage in found}
        return [passages[passage_id] for passage_id in ids if passage_id in passages]

    def passage(self, chunk_id: str, *, owner: str | None = None) -> Passage:
        """Return the passage with this chunk id. Raise DocumentNotFoundError."""
        document_id, _, ordinal = chunk_id.rpartition(":")
        if ordinal.isdecimal() and len(ordinal) < 10:
            condition = f"p.document_id = ? AND p.ordinal = ? AND {VISIBLE}"
            if found := self._passages(condition, document_id, int(ordinal), owner):
                return found[0]
        raise DocumentNotFoundError(chunk_id)

    def document_passages(self, document_id: str, *, start: int = 0, end: int | None = None) -> list[Passage]:
        """Return the passages that overlap a range of the document, in order. The caller checks the owner."""
        condition = "p.document_id = ? AND p.char_start + length(p.text) > ? AND p.char_start < ? ORDER BY p.ordinal"
        return self._passages(condition, document_id, start, _MAX_INTEGER if end is None else end, whole=True)

    def _passages(self, condition: str, *values: object, whole: bool = False) -> list[Passage]:
        query = f"SELECT {PASSAGE_COLUMNS} FROM passage p JOIN document d ON d.id = p.document_id WHERE {condition}"
        return [passage_from(row, whole=whole) for row in self._read(query, *values)]

    # Roots

    def roots(self) -> dict[str, bool]:
        """Return every indexed root with True for Turnwire's own documentation."""
        return {path: bool(own) for path, own in self._read("SELECT path, is_own FROM document_root ORDER BY path")}

    def add_root(self, path: str, *, is_own: bool = False) -> None:
        """Add a root. Any other root replaces Turnwire's own documentation."""

        def write(database: IndexConnection) -> None:
            database.execute(
                "INSERT INTO document_root VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET is_own = excluded.is_own",
                (path, is_own),
            )
            if not is_own:
                own = "SELECT path FROM document_root WHERE is_own"
                database.execute(f"DELETE FROM document WHERE root IN ({own})")
                database.execute("DELETE FROM document_root WHERE is_own")

        roots = self.roots()
        if roots.get(path) is not is_own or (not is_own and True in roots.values()):
            self._write(write)

    def forget_root(self, path: str) -> int:
        """Remove a root and its documents. Return the number of documents."""

        def write(database: IndexConnection) -> int:
            database.execute("DELETE FROM document_root WHERE path = ?", (path,))
            return len([*database.execute("DELETE FROM document WHERE root = ? RETURNING id", (path,))])

        return self._write(write)

    def digests(self, root: str) -> dict[str, tuple[str, str]]:
        """Return the id and digest of every document below a root, by name."""
        rows = self._read("SELECT name, id, digest FROM document WHERE root = ?", root)
        return {name: (document_id, digest) for name, document_id, digest in rows}

    # Vectors

    def vector_owners(self, embedder: str) -> list[tuple[int, str | None, bool]]:
        """Return the id and owner of every passage, with True if it has a vector by this embedder."""
        rows = self._read(
            "SELECT p.id, d.owner, v.passage_id IS NOT NULL FROM passage p JOIN document d ON d.id = p.document_id"
            " LEFT JOIN passage_vector v ON v.passage_id = p.id AND v.embedder = ? ORDER BY p.id",
            embedder,
        )
        return [(passage_id, owner, bool(has_vector)) for passage_id, owner, has_vector in rows]

    def vectors(self, embedder: str, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the vectors of these passages."""
        query = f"SELECT passage_id, vector FROM passage_vector WHERE embedder = ? AND passage_id {self.in_list}"
        return self._read(query, embedder, list(ids))

    def without_vector(self, embedder: str, limit: int) -> list[tuple[int, str]]:
        """Return the ids of passages that have no vector by this embedder, with the text to embed."""
        rows = self._read(
            "SELECT p.id, d.title, p.heading, p.text FROM passage p JOIN document d ON d.id = p.document_id"
            " WHERE NOT EXISTS (SELECT 1 FROM passage_vector v WHERE v.passage_id = p.id AND v.embedder = ?)"
            " ORDER BY p.id LIMIT ?",
            embedder,
            limit,
        )
        # The title comes first, because an encoder truncates, and a passage alone may lack its subject.
        return [(passage_id, "\n".join(texts)) for passage_id, *texts in rows]

    def vector_counts(self, embedder: str) -> tuple[int, int]:
        """Return the number of passages with a vector, and of all passages."""
        query = "SELECT (SELECT count(*) FROM passage_vector WHERE embedder = ?), (SELECT count(*) FROM passage)"
        return self._read(query, embedder)[0]

    def put_vectors(self, embedder: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Keep vectors, except those of passages that were removed meanwhile."""

        def write(database: IndexConnection) -> None:
            for passage_id, vector in vectors:
                database.execute(
                    "INSERT INTO passage_vector SELECT id, ?, ? FROM passage WHERE id = ?"
                    " ON CONFLICT (passage_id, embedder) DO UPDATE SET vector = excluded.vector",
                    (embedder, vector, passage_id),
                )

        self._write(write)


def term_weights(total: int, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the weight of each term. `counts` has the number of the `total` passages that contain it."""
    least = min(_RARE_COUNT, total * _RARE_SHARE)
    return {
        term: math.log(1 + (total - max(count, least) + 0.5) / (max(count, least) + 0.5))
        for term, count in counts.items()
    }


def passage_from(row: Sequence[Any], score: float = 0.0, *, whole: bool = False) -> Passage:
    """Return the passage of a row of `PASSAGE_COLUMNS`: its text without the white space after it, unless `whole`."""
    passage_id, document, ordinal, title, text, start, end, line_start, line_end, heading, page = row
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
