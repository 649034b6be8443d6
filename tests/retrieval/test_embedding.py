"""The contract of every embedder."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from blockbuster import blockbuster_ctx

from tests.scripted_model import scripted_model
from turnwire.retrieval.embedding import Embedder
from turnwire.retrieval.embedding.endpoint import EndpointEmbedder
from turnwire.retrieval.embedding.minilm import MiniLM


@pytest.fixture(params=["endpoint", "minilm"])
async def embedder(request: pytest.FixtureRequest) -> AsyncIterator[Embedder]:
    async with scripted_model() as server:
        made = EndpointEmbedder(server.url, "toy") if request.param == "endpoint" else MiniLM()
        yield made
        await made.close()


async def test_vectors_have_unit_length_and_one_size(embedder: Embedder) -> None:
    vectors = [
        *await embedder.embed_documents(["tea", "?", "a longer text about tea"]),
        await embedder.embed_query("t"),
    ]
    assert {vector.shape for vector in vectors} == {vectors[0].shape}
    for vector in vectors:
        assert vector.dtype == np.float32
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


async def test_vectors_have_the_order_of_the_texts(embedder: Embedder) -> None:
    texts = [f"{'tea' * number} number {number}" for number in range(70)]
    together = await embedder.embed_documents(texts)
    assert len(together) == len(texts)
    for number in (0, 1, 63, 64, 69):
        (alone,) = await embedder.embed_documents([texts[number]])
        assert np.allclose(together[number], alone, atol=1e-6)


async def test_no_texts_yield_no_vectors(embedder: Embedder) -> None:
    assert await embedder.embed_documents([]) == []


async def test_embedder_name_identifies_the_model(embedder: Embedder) -> None:
    assert embedder.name in ("endpoint:toy", "all-MiniLM-L6-v2-int8")


async def test_embedder_works_after_a_cancelled_call(embedder: Embedder) -> None:
    call = asyncio.ensure_future(embedder.embed_documents(["tea"] * 200))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(await embedder.embed_query("coffee")) > 0


async def test_event_loop_is_never_blocked(embedder: Embedder) -> None:
    with blockbuster_ctx("turnwire"):
        await embedder.embed_documents(["tea", "coffee"])
