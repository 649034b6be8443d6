"""The libraries of documents that the contract suite runs over: a SQLite file, and a PostgreSQL database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import shared_databases
from turnwire.retrieval.index.library import DocumentLibrary
from turnwire.retrieval.index.postgres import PostgresLibrary
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.stores.postgres.shared_database import SharedDatabase


class LibraryBackend:
    """Where a library is kept, which any number of processes may open."""

    def open(self) -> DocumentLibrary: ...

    def close(self) -> None: ...


class SqliteLibraries(LibraryBackend):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[SqliteLibrary] = []

    def open(self) -> DocumentLibrary:
        library = SqliteLibrary(self._folder / "documents.db")
        library.open()
        self._opened.append(library)
        return library

    def close(self) -> None:
        for library in self._opened:
            library.close()


class PostgresLibraries(LibraryBackend):
    def __init__(self, folder: Path) -> None:
        self._databases = shared_databases()
        self._database = self._databases.take()
        self._opened: list[SharedDatabase] = []

    def open(self) -> DocumentLibrary:
        database = SharedDatabase(self._databases.server.url(self._database))
        self._opened.append(database)
        library = PostgresLibrary(database)
        library.open()
        return library

    def close(self) -> None:
        for database in self._opened:
            database.close()
        self._databases.give_back(self._database)


@pytest.fixture(
    params=[
        pytest.param(SqliteLibraries, id="sqlite"),
        pytest.param(PostgresLibraries, id="postgres", marks=pytest.mark.postgres),
    ]
)
def libraries(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LibraryBackend]:
    backend: LibraryBackend = request.param(tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def library(libraries: LibraryBackend) -> DocumentLibrary:
    return libraries.open()


@pytest.fixture
def another_process(libraries: LibraryBackend) -> DocumentLibrary:
    """Another library object on the same data, as another process has it."""
    return libraries.open()


def check(library: DocumentLibrary) -> None:
    """Assert that every document has the passages that its record says."""
    documents = library.documents(limit=10_000)
    for document in documents:
        assert len(library.document_passages(document.id)) == document.passages
    assert library.count()[1] >= sum(document.passages for document in documents)
    assert library.vector_counts("none") == (0, library.count()[1])
