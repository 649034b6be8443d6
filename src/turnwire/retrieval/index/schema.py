"""The tables of the index: one file beside the logs."""

import sqlite3

from turnwire.retrieval.index.terms import TOKENIZER

VERSION = 1

_TABLES = f"""
CREATE TABLE changes(count INTEGER NOT NULL);
INSERT INTO changes VALUES (0);

CREATE TABLE roots(
    path TEXT PRIMARY KEY,
    is_own INTEGER NOT NULL          -- Turnwire's own documentation: it leaves when there is anything else
) WITHOUT ROWID;

CREATE TABLE documents(
    id TEXT PRIMARY KEY,
    root TEXT,                       -- null for what was uploaded
    name TEXT NOT NULL,              -- the path below the root, or the name it was uploaded with
    owner TEXT,                      -- null for what everyone may read
    title TEXT NOT NULL,
    format TEXT NOT NULL,
    digest TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    characters INTEGER NOT NULL,
    pages INTEGER,
    passages INTEGER NOT NULL,
    indexed_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX documents_root ON documents(root);
CREATE INDEX documents_owner ON documents(owner) WHERE owner IS NOT NULL;

CREATE TABLE passages(
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: who holds an old id must not find another text
    document_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    heading TEXT NOT NULL,
    text TEXT NOT NULL,              -- up to the next passage: all of them joined are the document
    char_start INTEGER NOT NULL,
    char_end INTEGER NOT NULL,
    line_start INTEGER NOT NULL,
    line_end INTEGER NOT NULL,
    page INTEGER
);
CREATE UNIQUE INDEX passages_document ON passages(document_id, ordinal);

CREATE VIRTUAL TABLE words USING fts5(heading, body, tokenize="{TOKENIZER}");

CREATE TABLE vectors(
    passage_id INTEGER NOT NULL,
    embedder TEXT NOT NULL,
    vector BLOB NOT NULL,            -- float32, of length one
    PRIMARY KEY(passage_id, embedder)
);
"""


def prepare(database: sqlite3.Connection) -> None:
    """Makes the tables in a new file. Raises ValueError for a file of another version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    if version:
        raise ValueError(f"it has version {version}, this Turnwire knows {VERSION}; move it away and index again")
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")
