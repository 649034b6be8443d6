"""The remote embedder, and its handling of faulty servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scripted_model import ScriptedModel, fails, hangs, model_server
from tests.serving import quick_settings
from turnwire.core.errors import EmbedderError, EmbedderUnusableError
from turnwire.retrieval.embedding import endpoint
from turnwire.retrieval.embedding.endpoint import EndpointEmbedder
from turnwire.retrieval.service import build_embedder

__all__ = ["model_server"]


@pytest.fixture
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRIES", 0)


async def test_many_texts_are_sent_in_batches(model_server: ScriptedModel) -> None:
    embedder = EndpointEmbedder(model_server.url, "toy", "secret")
    texts = [f"text {number}" for number in range(150)]
    assert len(await embedder.embed_documents(texts)) == 150
    assert [body["input"] for body in model_server.bodies] == [texts[:64], texts[64:128], texts[128:]]
    assert {body["model"] for body in model_server.bodies} == {"toy"}
    assert {request.headers["authorization"] for request in model_server.requests} == {"Bearer secret"}
    await embedder.close()


async def test_settings_give_the_endpoint_its_model_and_key(model_server: ScriptedModel, tmp_path: Path) -> None:
    section = {
        "embeddings": "endpoint",
        "embeddings_model": "toy",
        "embeddings_url": model_server.url,
        "embeddings_key": "secret",
    }
    settings = quick_settings(tmp_path, documents=section, model_url="http://127.0.0.1:1/v1", model_key="other")
    embedder = build_embedder(settings)
    assert isinstance(embedder, EndpointEmbedder)
    await embedder.embed_query("tea")
    await embedder.close()
    (request,) = model_server.requests
    assert (request.body["model"], request.headers["authorization"]) == ("toy", "Bearer secret")


async def test_vectors_are_normalised(model_server: ScriptedModel) -> None:
    model_server.embed = lambda text: [3.0, 4.0]
    embedder = EndpointEmbedder(model_server.url, "toy")
    assert (await embedder.embed_query("tea")).tolist() == pytest.approx([0.6, 0.8])
    await embedder.close()


async def test_busy_server_is_retried(model_server: ScriptedModel) -> None:
    model_server.embedding_failures = [fails(429, retry_after_ms=1), fails(503, retry_after_ms=1)]
    embedder = EndpointEmbedder(model_server.url, "toy")
    assert len(await embedder.embed_query("tea")) == 8
    assert len(model_server.requests) == 3
    await embedder.close()


@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.usefixtures("no_retries")
async def test_server_error_is_temporary(model_server: ScriptedModel, status: int) -> None:
    model_server.embedding_failures = [fails(status, message="sk-secret is wrong")]
    embedder = EndpointEmbedder(model_server.url, "toy")
    with pytest.raises(EmbedderError, match=f"its server answered {status}; try again") as caught:
        await embedder.embed_query("tea")
    assert not isinstance(caught.value, EmbedderUnusableError)
    assert "secret" not in str(caught.value)
    assert len(await embedder.embed_query("tea")) == 8
    await embedder.close()


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_refusal_makes_the_embedder_unusable(model_server: ScriptedModel, status: int) -> None:
    model_server.embedding_failures = [fails(status)]
    embedder = EndpointEmbedder(model_server.url, "toy")
    with pytest.raises(EmbedderUnusableError, match=f"answered {status}; check its address, its key"):
        await embedder.embed_query("tea")
    await embedder.close()


@pytest.mark.usefixtures("no_retries")
async def test_silent_server_times_out(model_server: ScriptedModel) -> None:
    model_server.embedding_failures = [hangs()]
    embedder = EndpointEmbedder(model_server.url, "toy", timeout=0.05)
    with pytest.raises(EmbedderError, match="cannot be reached"):
        await embedder.embed_query("tea")
    await embedder.close()


@pytest.mark.usefixtures("no_retries")
async def test_unreachable_server_is_reported() -> None:
    async with answering(b"") as url:
        pass
    embedder = EndpointEmbedder(url, "toy")
    with pytest.raises(EmbedderError, match="cannot be reached; check that it is running"):
        await embedder.embed_query("tea")
    await embedder.close()


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "find_spec", lambda name: None)
    with pytest.raises(EmbedderUnusableError, match=r"pip install 'turnwire\[openai,semantic\]'"):
        EndpointEmbedder("http://127.0.0.1:9/v1", "toy")


# Malformed responses


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    """A server with one response to every request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (size,) = (int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def listing(*rows: Any) -> bytes:
    return json.dumps({"object": "list", "data": rows, "model": "toy"}).encode()


def row(index: int, *numbers: float) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": numbers}


async def test_vectors_are_sorted_by_index() -> None:
    async with answering(listing(row(1, 0.0, 1.0), row(0, 1.0, 0.0))) as url:
        embedder = EndpointEmbedder(url, "toy")
        first, second = await embedder.embed_documents(["one", "two"])
        await embedder.close()
    assert np.array_equal(first, [1.0, 0.0])
    assert np.array_equal(second, [0.0, 1.0])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(listing(row(0, 1.0)), id="too few"),
        pytest.param(listing(row(0, 1.0), row(0, 1.0)), id="one index twice"),
        pytest.param(listing(row(0, 1.0), row(2, 1.0)), id="another's index"),
        pytest.param(listing(row(0, 1.0), row(1, 1.0, 2.0)), id="sizes that differ"),
        pytest.param(listing(row(0, 1.0), row(1, 0.0)), id="nothing but zeros"),
        pytest.param(listing(row(0, 1.0), row(1, float("nan"))), id="not a number"),
        pytest.param(listing(row(0), row(1)), id="no numbers"),
        pytest.param(listing({"index": 0}, {"index": 1}), id="no vector"),
        pytest.param(listing(), id="nothing"),
        pytest.param(b'{"data": null}', id="no list"),
        pytest.param(b'{"hello": "world"}', id="another thing"),
        pytest.param(b'{"data": [', id="half an answer"),
        pytest.param(b"<!doctype html><p>Sign in", id="a page"),
    ],
)
@pytest.mark.usefixtures("no_retries")
async def test_malformed_response_is_an_error(body: bytes) -> None:
    async with answering(body) as url:
        embedder = EndpointEmbedder(url, "toy")
        with pytest.raises(EmbedderError, match="its server answered with"):
            await embedder.embed_documents(["one", "two"])
        await embedder.close()
