"""Embedders: texts in, unit vectors out, so that a search finds passages that say the same in other words.

The similarity of two texts is the dot product of their vectors, from -1 to 1. Only vectors of embedders with the same
`name` may be compared.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # numpy comes with an extra, and this module must be importable without it.
    from numpy import float32
    from numpy.typing import NDArray

    Vector = NDArray[float32]
    """A one-dimensional array, of the same size for all vectors of one embedder."""


class Embedder(Protocol):
    """Embedder that never blocks the event loop. A cancelled call stops after the text or batch in progress."""

    @property
    def name(self) -> str:
        """The model and its version, stored beside the vectors; with another name all texts are embedded again."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
        """Return a vector for each text, in order. Raise EmbedderError."""
        ...

    async def embed_query(self, text: str) -> "Vector":
        """Return the vector to search with for documents that answer `text`. Raise EmbedderError."""
        ...

    async def close(self) -> None: ...
