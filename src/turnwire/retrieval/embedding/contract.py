"""What an embedder is to the rest of Turnwire: texts in, vectors of length 1 out.

Two texts are as alike as the dot product of their vectors, from -1 to 1. Only vectors of embedders of the
same `name` may be compared.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # numpy comes with an extra; without it there are no vectors, but this file can still be read.
    from numpy import float32
    from numpy.typing import NDArray

    Vector = NDArray[float32]
    """One dimension, of the same size for all vectors of one embedder."""


class Embedder(Protocol):
    """Never blocks the event loop. A call that is cancelled stops after the piece of work that is under way."""

    @property
    def name(self) -> str:
        """The model and its version, to be stored beside its vectors: another name means to embed again."""
        ...

    async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
        """One vector for each text, in their order. Raises EmbedderError."""
        ...

    async def embed_query(self, text: str) -> "Vector":
        """The vector that finds the documents which answer `text`. Raises EmbedderError."""
        ...

    async def close(self) -> None: ...
