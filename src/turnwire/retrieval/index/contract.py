"""The interface of a library of documents, which SQLite and PostgreSQL implement."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from turnwire.retrieval.index.library import Document, NewDocument, Passage


class DocumentLibrary(Protocol):
    """The documents of all users and their passages. Reads see public documents and those of `owner`, and no score or
    weight depends on any other.

    All methods block and may be called from any thread; async code calls them through `asyncio.to_thread`. They raise
    sqlite3.Error, OSError or StoreError if the database fails.
    """

    @property
    def is_shared(self) -> bool:
        """True if processes on other machines use the same library, which may have other folders."""
        ...

    @property
    def location(self) -> str: ...

    def open(self) -> None:
        """Open the library, creating it if needed. Raise StoreUnusableError."""
        ...

    def close(self) -> None: ...

    # Documents

    def put(self, documents: "Iterable[NewDocument]") -> None:
        """Insert documents in one transaction, replacing those with the same ids."""
        ...

    def remove(self, document_ids: Iterable[str]) -> None: ...

    def documents(
        self, *, owner: str | None = None, search: str | None = None, after: str | None = None, limit: int = 50
    ) -> "list[Document]":
        """List documents by name. `search` filters names and titles; `after` is the last id of the previous page."""
        ...

    def document(self, document_id: str, *, owner: str | None = None) -> "Document":
        """Return the document with this id. Raise DocumentNotFoundError."""
        ...

    def uploads(self, owner: str) -> int:
        """Return the number of documents that an owner has uploaded."""
        ...

    def count(self) -> tuple[int, int]:
        """Return the number of documents and of passages."""
        ...

    def version(self) -> int:
        """Return a number that changes with every write of any process."""
        ...

    # Passages

    def search(self, query: str, *, owner: str | None = None, limit: int = 10) -> "list[Passage]":
        """Return the passages that match the query's words best, best first; a higher score is better."""
        ...

    def weights(self, terms: Sequence[str], *, owner: str | None = None) -> dict[str, float]:
        """Return the inverse document frequency of each term among the passages.

        Rare terms weigh the same, so that a term that never occurs does not outweigh all others.
        """
        ...

    def passages(self, ids: Sequence[int], *, owner: str | None = None) -> "list[Passage]":
        """Return the passages with these ids that exist and are visible, in the order of `ids`."""
        ...

    def passage(self, chunk_id: str, *, owner: str | None = None) -> "Passage":
        """Return the passage with this chunk id. Raise DocumentNotFoundError."""
        ...

    def document_passages(self, document_id: str, *, start: int = 0, end: int | None = None) -> "list[Passage]":
        """Return the passages that overlap a range of the document, in order. The caller checks the owner."""
        ...

    # Roots

    def roots(self) -> dict[str, bool]:
        """Return every indexed root with True for Turnwire's own documentation."""
        ...

    def add_root(self, path: str, *, is_own: bool = False) -> None:
        """Add a root. Any other root replaces Turnwire's own documentation."""
        ...

    def forget_root(self, path: str) -> int:
        """Remove a root and its documents. Return the number of documents."""
        ...

    def digests(self, root: str) -> dict[str, tuple[str, str]]:
        """Return the id and digest of every document below a root, by name."""
        ...

    # Vectors

    def vector_owners(self, embedder: str) -> list[tuple[int, str | None, bool]]:
        """Return the id and owner of every passage, with True if it has a vector by this embedder."""
        ...

    def vectors(self, embedder: str, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return the vectors of these passages."""
        ...

    def without_vector(self, embedder: str, limit: int) -> list[tuple[int, str]]:
        """Return the ids of passages that have no vector by this embedder, with the text to embed."""
        ...

    def vector_counts(self, embedder: str) -> tuple[int, int]:
        """Return the number of passages with a vector, and of all passages."""
        ...

    def put_vectors(self, embedder: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Keep vectors, except those of passages that were removed meanwhile."""
        ...
