"""Documents on their way into the index, and out of it. The caller holds the transaction."""

import hashlib
import sqlite3
import time
from pathlib import Path

from turnwire.retrieval.documents.document import Chunk, Parsed, cut
from turnwire.retrieval.index.records import HEADING_MARK, Document
from turnwire.retrieval.index.terms import segment

DOCUMENT_COLUMNS = "id, name, title, format, digest, bytes, characters, passages, indexed_at, pages, owner, root"


class NewDocument:
    """A document that is read and cut, ready to be written."""

    __slots__ = ("chunks", "record")

    def __init__(
        self, name: str, kind: str, content: bytes, parsed: Parsed, *, root: str | None = None, owner: str | None = None
    ) -> None:
        self.chunks: list[Chunk] = cut(parsed)
        digest = digest_of(content)
        self.record = Document(
            id=document_id(root, name) if owner is None else document_id(owner, digest + name),
            name=name,
            title=parsed.title or Path(name).stem,
            format=kind,
            digest=digest,
            bytes=len(content),
            characters=len(parsed.text),
            passages=len(self.chunks),
            indexed_at=int(time.time() * 1000),
            pages=parsed.pages,
            owner=owner,
            root=root,
        )


def document_id(place: str | None, name: str) -> str:
    """The same for the same file, whenever it is indexed."""
    return hashlib.sha256(f"{place or ''}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def insert_document(database: sqlite3.Connection, document: NewDocument) -> None:
    record = document.record
    values = [getattr(record, name) for name in DOCUMENT_COLUMNS.split(", ")]
    database.execute(f"INSERT INTO documents({DOCUMENT_COLUMNS}) VALUES ({','.join('?' * len(values))})", values)
    counted = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'passages'").fetchone()
    last = counted[0] if counted else 0
    numbered = list(enumerate(document.chunks))
    database.executemany(
        "INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(last + 1 + n, record.id, n, HEADING_MARK.join(c.headings), c.text, *_place(c)) for n, c in numbered],
    )
    database.executemany(
        "INSERT INTO words(rowid, heading, body) VALUES (?, ?, ?)",
        [(last + 1 + n, segment(_indexed_heading(record, c)), segment(c.text)) for n, c in numbered],
    )


def _place(chunk: Chunk) -> tuple[int, int, int, int, int | None]:
    return chunk.start, chunk.end, chunk.line_start, chunk.line_end, chunk.page


def _indexed_heading(record: Document, chunk: Chunk) -> str:
    """The title is found with every passage, also where no heading says it."""
    if chunk.headings and chunk.headings[0] == record.title:
        return " ".join(chunk.headings)
    return " ".join((record.title, *chunk.headings))


def delete_document(database: sqlite3.Connection, document_id: str) -> int:
    if database.execute("SELECT 1 FROM documents WHERE id = ?", (document_id,)).fetchone() is None:
        return 0
    for table, key in (("words", "rowid"), ("vectors", "passage_id")):
        database.execute(
            f"DELETE FROM {table} WHERE {key} IN (SELECT id FROM passages WHERE document_id = ?)", (document_id,)
        )
    database.execute("DELETE FROM passages WHERE document_id = ?", (document_id,))
    return database.execute("DELETE FROM documents WHERE id = ?", (document_id,)).rowcount


def take_out_root(database: sqlite3.Connection, root: str) -> int:
    found = database.execute("SELECT id FROM documents WHERE root = ?", (root,)).fetchall()
    database.execute("DELETE FROM roots WHERE path = ?", (root,))
    return sum(delete_document(database, document_id) for (document_id,) in found)
