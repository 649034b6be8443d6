"""Documents and passages as plain values."""

from msgspec import Struct


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


HEADING_MARK = " › "
