"""The remote embedder: any server with OpenAI's `/v1/embeddings` (extras `[openai]` and `[semantic]`)."""

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, json

from turnwire.core.errors import EmbedderError, EmbedderUnusableError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from turnwire.retrieval.embedding import Vector

MAX_BATCH = 64
RETRIES = 2


class EndpointEmbedder:
    """Embedder of an OpenAI-compatible server; `url` ends in `/v1`."""

    def __init__(self, url: str, model: str, key: str | None = None, timeout: float = 30.0) -> None:
        """Connect lazily. Raise EmbedderUnusableError if an extra is not installed."""
        # Without the address: the same model on another machine makes the same vectors.
        self.name = f"endpoint:{model}"
        if not all(map(find_spec, ("numpy", "openai"))):
            raise EmbedderUnusableError(self.name, "it needs extras: pip install 'turnwire[openai,semantic]'")
        self._url = url
        self._model = model
        self._key = key
        self._timeout = timeout
        self._client: AsyncOpenAI | None = None
        self._opening = asyncio.Lock()

    async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
        vectors: list[Vector] = []
        for start in range(0, len(texts), MAX_BATCH):
            vectors += await self._embed(texts[start : start + MAX_BATCH])
        return vectors

    async def embed_query(self, text: str) -> "Vector":
        return (await self._embed([text]))[0]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _embed(self, texts: Sequence[str]) -> "list[Vector]":
        async with self._opening:
            # Its imports take a second, which must not block the event loop.
            self._client = self._client or await asyncio.to_thread(self._open)
        from openai import APIConnectionError, APIStatusError

        try:
            # Floats, because some servers cannot do base64, the client's default. A raw response, because the client
            # would block the event loop for a third of a second to parse 64 long vectors.
            response = await self._client.embeddings.with_raw_response.create(
                model=self._model, input=list(texts), encoding_format="float"
            )
        except APIStatusError as error:
            if error.status_code in (401, 403, 404):
                reason = f"its server answered {error.status_code}; check its address, its key and the model's name"
                raise EmbedderUnusableError(self.name, reason) from error
            raise EmbedderError(self.name, f"its server answered {error.status_code}; try again later") from error
        except APIConnectionError as error:
            raise EmbedderError(self.name, "its server cannot be reached; check that it is running") from error
        return await asyncio.to_thread(self._parse, response.content, len(texts))

    def _open(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        # Local servers need no key, but the client does.
        key = self._key or "none"
        return AsyncOpenAI(base_url=self._url, api_key=key, timeout=self._timeout, max_retries=RETRIES)

    def _parse(self, content: bytes, count: int) -> "list[Vector]":
        import numpy as np

        try:
            rows = {row.index: row.embedding for row in json.decode(content, type=_EmbeddingResponse).data}
            vectors = np.array([rows.pop(index) for index in range(count)], dtype=np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        except (DecodeError, KeyError, ValueError) as error:
            raise EmbedderError(self.name, "its server answered with no vector for some of the texts") from error
        if not np.isfinite(lengths).all() or not lengths.all():
            raise EmbedderError(self.name, "its server answered with a vector that has no direction")
        return list(vectors / lengths)


class _Row(Struct):
    index: int
    embedding: list[float]


class _EmbeddingResponse(Struct):
    data: list[_Row]
