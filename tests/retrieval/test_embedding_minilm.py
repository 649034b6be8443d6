"""The MiniLM embedder: similarity, checked weights, and its worker thread."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.serving import PATIENCE
from turnwire.core.errors import EmbedderUnusableError
from turnwire.retrieval.embedding import minilm
from turnwire.retrieval.embedding.minilm import MiniLM


async def test_text_is_most_similar_to_its_paraphrase() -> None:
    model = MiniLM()
    texts = [
        "How do I stop an answer half way?",
        "The cat sleeps on the sofa.",
        "Which port does the server listen on?",
    ]
    meant = [
        "A running turn can be cancelled.",
        "A kitten is napping on the couch.",
        "It is on localhost:8000.",
    ]
    alike = np.stack(await model.embed_documents(texts)) @ np.stack(await model.embed_documents(meant)).T
    assert alike.argmax(axis=1).tolist() == [0, 1, 2]
    assert alike[1, 1] > 0.6
    assert abs(alike[0, 1]) < 0.2
    await model.close()


async def test_words_beyond_the_token_limit_are_ignored() -> None:
    model = MiniLM()
    long = "tea " * 254
    assert np.array_equal(await model.embed_query(long), await model.embed_query(long + "coffee"))
    await model.close()


async def test_weights_with_another_digest_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "model.onnx"
    weights.write_bytes(b"something else")
    with pytest.raises(EmbedderUnusableError, match=r"model\.onnx is not the file it should be; pip install"):
        await MiniLM(weights).embed_query("tea")


async def test_missing_weights_are_reported(tmp_path: Path) -> None:
    with pytest.raises(EmbedderUnusableError, match="its files cannot be loaded"):
        await MiniLM(tmp_path / "model.onnx").embed_query("tea")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(EmbedderUnusableError, match=r"pip install 'turnwire\[semantic\]'"):
        MiniLM()


class SlowModel(MiniLM):
    """Embedder that records its texts and blocks until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.reading = threading.Event()
        self.go_on = threading.Event()

    def _embed(self, text: str) -> NDArray[np.float32]:
        self.read.append(text)
        self.reading.set()
        assert self.go_on.wait(PATIENCE)
        return np.ones(1, dtype=np.float32)


@pytest.fixture
def slow() -> Iterator[SlowModel]:
    model = SlowModel()
    yield model
    model.go_on.set()


async def test_event_loop_runs_while_the_model_works(slow: SlowModel) -> None:
    call = asyncio.ensure_future(slow.embed_query("tea"))
    await asyncio.to_thread(slow.reading.wait, 10)
    assert not call.done()
    slow.go_on.set()
    assert (await call).tolist() == [1.0]


async def test_query_waits_for_one_document_at_most(slow: SlowModel) -> None:
    documents = asyncio.ensure_future(slow.embed_documents(["one", "two", "three"]))
    await asyncio.to_thread(slow.reading.wait, 10)
    query = asyncio.ensure_future(slow.embed_query("query"))
    await asyncio.sleep(0)
    slow.go_on.set()
    await asyncio.gather(documents, query)
    assert slow.read == ["one", "query", "two", "three"]


async def test_cancelled_call_embeds_no_further_text(slow: SlowModel) -> None:
    documents = asyncio.ensure_future(slow.embed_documents(["one", "two", "three"]))
    await asyncio.to_thread(slow.reading.wait, 10)
    documents.cancel()
    with pytest.raises(asyncio.CancelledError):
        await documents
    slow.go_on.set()
    await slow.embed_query("query")
    assert slow.read == ["one", "query"]
