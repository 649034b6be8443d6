"""Inserting and deleting documents, inside the caller's transaction."""

import hashlib
import sqlite3
import time
from pathlib import Path

from turnwire.retrieval.documents.document import Chunk, ParsedDocument, split_document
from turnwire.retrieval.index.records import HEADING_MARK, Document
from turnwire.retrieval.index.terms import segment

DOCUMENT_COLUMNS = "id, name, title, format, digest, bytes, characters, passages, indexed_at, pages, owner, root"


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


def document_id(scope: str | None, name: str) -> str:
    """Return the stable id of a document; `scope` is its root, or the owner who uploaded it."""
    return hashlib.sha256(f"{scope or ''}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def insert_document(database: sqlite3.Connection, document: NewDocument) -> None:
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
        [(first_id + n, segment(_indexed_heading(record, c)), segment(c.text)) for n, c in numbered],
    )


def _position(chunk: Chunk) -> tuple[int, int, int, int, int | None]:
    return chunk.start, chunk.end, chunk.line_start, chunk.line_end, chunk.page


def _indexed_heading(record: Document, chunk: Chunk) -> str:
    """Return the searchable heading, which includes the title, so that a search for it finds every passage."""
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


def delete_root(database: sqlite3.Connection, root: str) -> int:
    rows = database.execute("SELECT id FROM documents WHERE root = ?", (root,)).fetchall()
    database.execute("DELETE FROM roots WHERE path = ?", (root,))
    return sum(delete_document(database, document_id) for (document_id,) in rows)
