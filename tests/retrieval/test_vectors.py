"""The vector index, and the fusion of both rankings."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from blockbuster import blockbuster_ctx

from tests.retrieval.paper import note, opened, rows
from tests.serving import within
from turnwire.core.errors import EmbedderError
from turnwire.retrieval.index import searcher
from turnwire.retrieval.index.library import Passage
from turnwire.retrieval.index.searcher import Searcher, VectorIndex
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.search import EvidenceSearch
from turnwire.retrieval.sentences import Matcher

if TYPE_CHECKING:
    from turnwire.retrieval.embedding import Vector

AXES = {"tea": 0, "oolong": 0, "beverage": 0, "ship": 1, "vessel": 1, "star": 2, "sun": 2}


class Toy:
    """Embedder of three meanings. `embedded` are its texts; `error` is raised if set."""

    def __init__(self, name: str = "toy") -> None:
        self.name = name
        self.embedded: list[str] = []
        self.error: EmbedderError | None = None
        self.is_closed = False

    async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
        if self.error:
            raise self.error
        self.embedded += texts
        return [self._vector(text) for text in texts]

    async def embed_query(self, text: str) -> "Vector":
        if self.error:
            raise self.error
        return self._vector(text)

    async def close(self) -> None:
        self.is_closed = True

    def _vector(self, text: str) -> "Vector":
        vector = np.full(3, 0.01, dtype=np.float32)
        for word in text.lower().replace(".", " ").split():
            if word in AXES:
                vector[AXES[word]] += 1
        return (vector / np.linalg.norm(vector)).astype(np.float32)


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire"):
        yield


@pytest.fixture
def library(tmp_path: Path) -> Iterator[SqliteLibrary]:
    with opened(tmp_path / "documents.db") as library:
        yield library


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def meaning(library: SqliteLibrary, toy: Toy) -> VectorIndex:
    return VectorIndex(library, toy)


async def put(library: SqliteLibrary, *texts: str, owner: str | None = None, start: int = 0) -> None:
    notes = [note(text, f"{number}.md", owner=owner) for number, text in enumerate(texts, start=start)]
    await asyncio.to_thread(library.put, notes)


async def texts(library: SqliteLibrary, found: list[tuple[int, float]] | None) -> list[str]:
    assert found is not None
    return [item.text for item in await asyncio.to_thread(library.passages, [passage_id for passage_id, _ in found])]


# Vectors


async def test_nearest_passages_come_first_with_similarity(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "A ship.", "Tea on a ship.", "Tea and oolong.", "A star.")
    assert await meaning.embed_missing() == 4
    found = await meaning.nearest("beverage", 2)
    assert await texts(library, found) == ["Tea and oolong.", "Tea on a ship."]
    assert found is not None
    likeness = [near for _, near in found]
    assert likeness == sorted(likeness, reverse=True)
    assert likeness[0] == pytest.approx(1, abs=0.01)
    assert likeness[1] == pytest.approx(0.7, abs=0.02)


async def test_nearest_returns_fewer_than_the_limit(library: SqliteLibrary, meaning: VectorIndex) -> None:
    assert await meaning.nearest("tea", 5) is None
    await put(library, "Tea.", "A ship.")
    await meaning.embed_missing()
    assert len(await texts(library, await meaning.nearest("tea", 5))) == 2


async def test_nearest_is_none_while_too_many_vectors_are_missing(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, *(f"Tea {number}." for number in range(20)))
    await meaning.embed_missing()
    for done in range(20, 15, -1):
        assert (await meaning.nearest("tea", 1) is not None) == (done >= 18), done
        await asyncio.to_thread(delete_vector, library)
    await meaning.embed_missing()
    assert await meaning.nearest("tea", 1) is not None


def delete_vector(library: SqliteLibrary) -> None:
    with library.file.writing() as database:
        database.execute("DELETE FROM passage_vector WHERE passage_id = (SELECT max(passage_id) FROM passage_vector)")


async def test_embedding_reports_done_and_total(
    library: SqliteLibrary, meaning: VectorIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher, "_BATCH", 8)
    await put(library, *(f"Tea {number}." for number in range(20)))
    result: list[tuple[int, int]] = []
    assert await meaning.embed_missing(lambda done, total: result.append((done, total))) == 20
    assert result == [(0, 20), (8, 20), (16, 20), (20, 20)]


async def test_only_passages_without_a_vector_are_embedded(
    library: SqliteLibrary, meaning: VectorIndex, toy: Toy
) -> None:
    await put(library, "# Drinks\n\nTea.", "A ship.")
    await meaning.embed_missing()
    assert [text.splitlines()[-1] for text in toy.embedded] == ["Tea.", "A ship."]
    toy.embedded.clear()
    assert await meaning.embed_missing() == 0
    await put(library, "A star.", start=2)
    assert await meaning.embed_missing() == 1
    assert [text.splitlines()[-1] for text in toy.embedded] == ["A star."]


async def test_embedded_text_has_title_and_headings(library: SqliteLibrary, meaning: VectorIndex, toy: Toy) -> None:
    await put(library, "# Drinks\n\n## Hot\n\nTea.")
    await meaning.embed_missing()
    assert toy.embedded[0].startswith("Drinks\nDrinks › Hot\n")


async def test_change_is_seen_by_the_next_query(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "Tea.", "A ship.")
    await meaning.embed_missing()
    assert await texts(library, await meaning.nearest("vessel", 1)) == ["A ship."]
    await put(library, "Tea.", "Only a star now.")
    await meaning.embed_missing()
    assert await texts(library, await meaning.nearest("vessel", 2)) != ["A ship."]
    assert await texts(library, await meaning.nearest("sun", 1)) == ["Only a star now."]


async def test_removed_passage_is_not_returned(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, *(f"Tea {number}." for number in range(20)), "A ship.")
    await meaning.embed_missing()
    (ship,) = await asyncio.to_thread(library.search, "ship")
    await asyncio.to_thread(library.remove, [ship.document_id])
    found = await meaning.nearest("vessel", 30)
    assert found is not None
    assert ship.id not in dict(found)
    assert await asyncio.to_thread(rows, library, "SELECT count(*) FROM passage_vector") == [(20,)]


async def test_passage_removed_while_embedded_gets_no_vector(library: SqliteLibrary, toy: Toy) -> None:
    class Slow(Toy):
        async def embed_documents(self, texts: Sequence[str]) -> "list[Vector]":
            documents = await asyncio.to_thread(library.documents)
            await asyncio.to_thread(library.remove, [documents[0].id])
            return await super().embed_documents(texts)

    await put(library, "Tea.", "A ship.")
    await within(VectorIndex(library, Slow()).embed_missing())
    query = "SELECT text FROM passage_vector JOIN passage ON id = passage_id"
    assert await asyncio.to_thread(rows, library, query) == [("A ship.",)]
    assert await asyncio.to_thread(rows, library, "SELECT count(*) FROM passage_vector") == [(1,)]


async def test_vectors_of_another_embedder_are_ignored(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "Tea.", "A ship.")
    await meaning.embed_missing()
    other = VectorIndex(library, Toy("another"))
    assert await other.nearest("tea", 1) is None
    assert await other.embed_missing() == 2
    assert await texts(library, await other.nearest("tea", 1)) == ["Tea."]
    assert await texts(library, await meaning.nearest("tea", 1)) == ["Tea."]


async def test_passage_id_is_never_reused(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "Tea.", "A ship.")
    await meaning.embed_missing()
    before = await meaning.nearest("beverage", 2)
    await put(library, "A star.", "A boat.")
    assert before is not None
    assert await texts(library, before) == []


async def test_queries_run_while_documents_change(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "Tea.", "A ship.", "A star.")
    await meaning.embed_missing()

    async def ask(query: str, expected: str) -> None:
        for _ in range(15):
            found = await meaning.nearest(query, 1)
            if found is not None:
                near = await texts(library, found)
                assert near in ([expected], []), near

    async def change() -> None:
        for number in range(15):
            await put(library, "Tea.", *(["A ship.", "A star."] if number % 2 else ["A star.", "A ship."]))
            await meaning.embed_missing()

    questions = {"beverage": "Tea.", "vessel": "A ship.", "sun": "A star."}
    await within(asyncio.gather(change(), *(ask(query, text) for query, text in questions.items())))


async def test_embedder_error_keeps_finished_vectors(
    library: SqliteLibrary, meaning: VectorIndex, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher, "_BATCH", 2)
    await put(library, *(f"Tea {number}." for number in range(4)))

    def fail(done: int, total: int) -> None:
        toy.error = EmbedderError("toy", "it is broken; mend it") if done == 2 else None

    with pytest.raises(EmbedderError):
        await meaning.embed_missing(fail)
    toy.error = None
    assert await meaning.embed_missing() == 2
    await meaning.close()
    assert toy.is_closed


# Both rankings


async def search(
    library: SqliteLibrary, meaning: VectorIndex | None, query: str, **options: str | None
) -> list[Passage]:
    return await Searcher(library, meaning).search(query, owner=options.get("owner"), limit=10)


async def test_passage_in_both_rankings_comes_first(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "A beverage machine.", "Oolong tea.", "A beverage of tea.", "A star.")
    await meaning.embed_missing()
    found = await search(library, meaning, "beverage tea")
    assert found[0].text == "A beverage of tea."
    assert {passage.text for passage in found} >= {"A beverage machine.", "Oolong tea."}
    assert all(passage.score > 0 for passage in found)


async def test_passage_without_the_words_is_found_by_meaning(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "Oolong.", "A ship.")
    assert await search(library, meaning, "beverage") == []
    await meaning.embed_missing()
    found = await search(library, meaning, "beverage")
    assert found[0].text == "Oolong."
    assert found[0].score == max(passage.score for passage in found)


async def test_search_by_meaning_hides_documents_of_others(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, "Tea for all.")
    await put(library, "Oolong of Anna.", owner="anna")
    await meaning.embed_missing()
    assert [passage.text for passage in await search(library, meaning, "beverage", owner="bert")] == ["Tea for all."]
    assert len(await search(library, meaning, "beverage", owner="anna")) == 2


async def test_failed_embedder_leaves_the_search_by_words(
    library: SqliteLibrary, meaning: VectorIndex, toy: Toy, caplog: pytest.LogCaptureFixture
) -> None:
    await put(library, "Tea.", "A ship with tea.", "Oolong.")
    await meaning.embed_missing()
    toy.error = EmbedderError("toy", "it is broken; mend it")
    with caplog.at_level(logging.WARNING):
        found = await search(library, meaning, "tea")
    assert found == await search(library, None, "tea")
    assert [passage.text for passage in found] == ["Tea.", "A ship with tea."]
    assert "the search is by words only" in caplog.text


async def test_definitions_come_first_and_other_passages_keep_the_order_of_both_rankings(
    library: SqliteLibrary, meaning: VectorIndex
) -> None:
    often, near = "Tea tea tea ship ship ship ship ship.", "Tea that people in the village drink each day of the year."
    await put(library, "Tea is a leaf.", often, near, *(f"Oolong on ship {number}." for number in range(10)))
    await meaning.embed_missing()
    fused = Searcher(library, meaning)
    ranked = await fused.search("What is tea", owner=None, limit=10)
    expected = [passage.text for passage in ranked]
    scores = {passage.text: passage.score for passage in ranked}
    assert expected.index(near) < expected.index(often)
    assert scores[near] < scores[often]
    run = EvidenceSearch(fused, Matcher("What is tea", {}), None, None, None)
    found = [item.passage.text for item in await run.run("What is tea", 10)]
    assert found == ["Tea is a leaf.", *(text for text in expected if text != "Tea is a leaf.")]


async def test_search_is_by_words_while_vectors_are_missing(library: SqliteLibrary, meaning: VectorIndex) -> None:
    await put(library, *(f"Tea {number}." for number in range(12)))
    by_words = await search(library, None, "tea")
    assert await search(library, meaning, "tea") == by_words
    assert len(by_words) == 10


# Documents of others


async def test_nearest_ignores_passages_that_the_owner_may_not_read(
    library: SqliteLibrary, meaning: VectorIndex
) -> None:
    await put(library, "A star.", "Tea for all.")
    await put(library, "Tea of Anna.", owner="anna")
    await put(library, *(f"Tea {number}." for number in range(30)), owner="bert", start=10)
    await meaning.embed_missing()
    for owner, expected in (("anna", 3), (None, 2), ("carl", 2)):
        found = await meaning.nearest("tea", 3, owner=owner)
        assert found is not None
        ids = [passage_id for passage_id, _ in found]
        assert len(await asyncio.to_thread(library.passages, ids, owner=owner)) == expected


async def test_passages_of_others_without_a_vector_do_not_switch_the_meaning_off(
    library: SqliteLibrary, meaning: VectorIndex
) -> None:
    await put(library, "Tea.", "A star.")
    await meaning.embed_missing()
    await put(library, *(f"Tea {number}." for number in range(30)), owner="bert", start=10)
    assert await meaning.nearest("tea", 1, owner="anna") is not None
    assert await meaning.similarities("tea", ["Tea."], owner="anna") is not None
    assert await meaning.nearest("tea", 1, owner="bert") is None
