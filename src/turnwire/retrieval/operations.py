"""Documents in the commands of operators: `turnwire doctor` and `turnwire move`."""

import sqlite3
from contextlib import closing
from pathlib import Path

from turnwire.assembly import open_shared
from turnwire.core.contracts.stores import BlockingDatabase
from turnwire.core.errors import StoreError, StoreUnusableError
from turnwire.plugins import Check
from turnwire.retrieval.index.library import NewDocument
from turnwire.retrieval.index.postgres import PostgresLibrary
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.service import LIBRARY_FILE
from turnwire.settings import read_settings


def check(data: Path, database_url: str | None) -> list[Check]:
    return [_full_text_search(), _documents(data) if database_url is None else _shared_documents(database_url)]


def _full_text_search() -> Check:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE passage USING fts5 (text)")
        except sqlite3.OperationalError:
            problem = "SQLite has no FTS5, so documents cannot be searched; use another build of Python, such as uv's"
            return Check("text search", "bad", problem)
    return Check("text search", "ok", "FTS5")


def _documents(data: Path) -> Check:
    library = SqliteLibrary(data / LIBRARY_FILE)
    if not library.path.exists():
        remedy = "add some with `turnwire index PATH` or `turnwire serve --docs PATH`"
        return Check("documents", "ok", f"none indexed; {remedy}")
    try:
        library.open()
    except StoreUnusableError as error:
        return Check("documents", "bad", str(error))
    with closing(library):
        return _counted(*library.count())


def _shared_documents(url: str) -> Check:
    try:
        database = open_shared(read_settings(database_url=url))
        database.open(migrate=False)
        with closing(database):
            library = PostgresLibrary(database)
            return _counted(*library.count()) if library.exists() else Check("documents", "ok", "none indexed")
    except StoreError as error:
        return Check("documents", "bad", str(error))


def _counted(documents: int, passages: int) -> Check:
    return Check("documents", "ok", f"{documents:,} in {passages:,} passages")


def move(data: Path, database: BlockingDatabase) -> int:
    """Copy the uploaded documents of a data folder, and return their number."""
    if not (data / LIBRARY_FILE).exists():
        return 0
    target, count = PostgresLibrary(database), 0
    target.open()
    with closing(SqliteLibrary(data / LIBRARY_FILE)) as library:
        library.open()
        for record in library.all_uploads():
            target.put([NewDocument.copied(record, library.document_passages(record.id))])
            count += 1
    return count
