"""For authors of wires: the documents of a server, which a plugin may provide."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class DocumentFields(Protocol):
    """A document that a principal may read."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...


class PassageFields(Protocol):
    """A part of a document."""

    @property
    def document_id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def heading(self) -> str: ...
    @property
    def page(self) -> int | None: ...
    @property
    def text(self) -> str: ...


@runtime_checkable
class DocumentSource(Protocol):
    """Documents that are searched and read on behalf of a principal, the `owner` of uploads."""

    @property
    def has_documents(self) -> bool:
        """Whether this server has documents at all; the methods below are only for one that has."""
        ...

    @property
    def upload_suffixes(self) -> Sequence[str]:
        """The endings of the names of files that can be read, such as `.pdf`."""
        ...

    async def search(self, query: str, *, owner: str, limit: int) -> Sequence[PassageFields]:
        """Return the passages that fit best. Raises AgentError."""
        ...

    async def list_documents(self, *, owner: str, after: str | None, limit: int) -> Sequence[DocumentFields]:
        """Return documents by name, after the one with the id `after`. Raises DocumentNotFoundError."""
        ...

    async def read_document(self, document_id: str, *, owner: str) -> str:
        """Return a document's text. Raises DocumentNotFoundError."""
        ...
