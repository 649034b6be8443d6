"""Searching from async code: by words, and also by meaning once enough passages have a vector.

Vectors are made in the background and compared by brute force: comparing 13,000 takes a third of a millisecond, so no
approximate index is needed.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from turnwire.core.errors import EmbedderError
from turnwire.retrieval.embedding import Embedder
from turnwire.retrieval.index.library import DocumentLibrary, Passage

if TYPE_CHECKING:
    from turnwire.retrieval.embedding import Vector

logger = logging.getLogger("turnwire.retrieval")

_RANK_CONSTANT = 20
_FADE = 0.9
_CANDIDATES = 200
_BATCH = 32
_MAX_RECENT = 4_096
# Below this share, passages without a vector would rank too low.
_MIN_SHARE = 0.9


class Searcher:
    """Search over a library that fuses the rankings by words and by meaning."""

    def __init__(self, library: DocumentLibrary, meaning: "VectorIndex | None" = None) -> None:
        self.library = library
        self._meaning = meaning

    async def search(self, query: str, *, owner: str | None, limit: int) -> list[Passage]:
        """Return the passages that `owner` may read, best first."""
        if self._meaning is None:
            return await asyncio.to_thread(self.library.search, query, owner=owner, limit=limit)
        by_words, nearest = await asyncio.gather(
            asyncio.to_thread(self.library.search, query, owner=owner, limit=_CANDIDATES),
            self._nearest(self._meaning, query, owner),
        )
        if nearest is None:
            return by_words[:limit]
        ids = [passage_id for passage_id, _ in nearest]
        by_meaning = await asyncio.to_thread(self.library.passages, ids, owner=owner)
        return _fused(by_words, by_meaning)[:limit]

    async def similarities(self, query: str, texts: Sequence[str], *, owner: str | None = None) -> list[float] | None:
        """Return the similarity by meaning of each text to the query; None if there is no working embedder."""
        if self._meaning is None:
            return None
        try:
            return await self._meaning.similarities(query, texts, owner=owner)
        except EmbedderError as error:
            logger.warning("the embedder failed, so the answer is chosen by words only: %s", error)
            return None

    async def _nearest(self, meaning: "VectorIndex", query: str, owner: str | None) -> list[tuple[int, float]] | None:
        try:
            return await meaning.nearest(query, _CANDIDATES, owner=owner)
        except EmbedderError as error:
            logger.warning("the embedder failed, so the search is by words only: %s", error)
            return None


def _fused(by_words: list[Passage], by_meaning: list[Passage]) -> list[Passage]:
    """Merge two rankings by reciprocal rank fusion."""
    rank_scores: dict[int, float] = {}
    passages: dict[int, Passage] = {}
    for ranking in (by_words, by_meaning):
        for rank, passage in enumerate(ranking):
            rank_scores[passage.id] = rank_scores.get(passage.id, 0) + 1 / (_RANK_CONSTANT + rank + 1)
            passages.setdefault(passage.id, passage)
    ranked = sorted(passages.values(), key=lambda passage: -rank_scores[passage.id])
    top = max((passage.score for passage in by_words), default=1.0)
    return [
        # A passage that was found only by meaning has no score of its own: give it one that fits its rank.
        passage if passage.score else structs.replace(passage, score=top * _FADE**rank)
        for rank, passage in enumerate(ranked)
    ]


class LoadedVectors:
    """The vectors of all passages at one version of the library."""

    def __init__(self, version: int, owners: Sequence[tuple[int, str | None, bool]], matrix: Any) -> None:
        self.version = version
        self.ids = [passage_id for passage_id, _, has_vector in owners if has_vector]
        self.matrix = matrix
        """A row for each of the ids; None if there are none."""
        self._passages = Counter(owner for _, owner, _ in owners)
        self._rows: dict[str | None, list[int]] = {}
        for row, owner in enumerate(owner for _, owner, has_vector in owners if has_vector):
            self._rows.setdefault(owner, []).append(row)

    def rows(self, owner: str | None) -> list[int] | None:
        """Return the rows of the passages that `owner` may read; None if too many of those have no vector."""
        owners = {None, owner}
        rows = [row for each in owners for row in self._rows.get(each, ())]
        total = sum(self._passages[each] for each in owners)
        return rows if rows and len(rows) >= total * _MIN_SHARE else None


class VectorIndex:
    """The vectors of a library's passages by one embedder."""

    def __init__(self, library: DocumentLibrary, embedder: Embedder) -> None:
        self._library = library
        self._embedder = embedder
        # Replaced as a whole: a concurrent query must not mix two versions.
        self._loaded = LoadedVectors(-1, [], None)
        # The same parts of documents come up in many questions.
        self._recent: OrderedDict[str, Vector] = OrderedDict()

    async def nearest(self, query: str, limit: int, *, owner: str | None = None) -> list[tuple[int, float]] | None:
        """Return ids and similarities of passages that `owner` may read, most similar first.

        Return None while too few of these passages have a vector.
        """
        loaded = await asyncio.to_thread(self._current)
        rows = loaded.rows(owner)
        if rows is None:
            return None
        vector = await self._embedder.embed_query(query)
        return await asyncio.to_thread(_nearest, loaded, rows, vector, limit)

    async def similarities(self, query: str, texts: Sequence[str], *, owner: str | None = None) -> list[float] | None:
        """Return the similarity of each text to the query; None while too few passages have a vector."""
        loaded = await asyncio.to_thread(self._current)
        if loaded.rows(owner) is None:
            return None
        vector = await self._embedder.embed_query(query)
        new = [text for text in texts if text not in self._recent]
        # Kept apart until the end: a concurrent query may drop the oldest of the recent ones.
        vectors = {text: self._recent[text] for text in texts if text in self._recent}
        vectors.update(zip(new, await self._embedder.embed_documents(new) if new else [], strict=True))
        self._recent.update(vectors)
        for text in texts:
            self._recent.move_to_end(text)
        while len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)
        return [float(vectors[text] @ vector) for text in texts]

    async def embed_missing(self, report: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Embed the passages without a vector and return their number. `report` gets the counts of done and total."""
        made = 0
        name = self._embedder.name
        while True:
            report(*await asyncio.to_thread(self._library.vector_counts, name))
            batch = await asyncio.to_thread(self._library.without_vector, name, _BATCH)
            if not batch:
                return made
            vectors = await self._embedder.embed_documents([text for _, text in batch])
            rows = [(n, vector.astype("float32").tobytes()) for (n, _), vector in zip(batch, vectors, strict=True)]
            await asyncio.to_thread(self._library.put_vectors, name, rows)
            made += len(batch)

    async def close(self) -> None:
        await self._embedder.close()

    def _current(self) -> LoadedVectors:
        """Return the vectors of the current version; after a change, load those that are new."""
        version = self._library.version()
        loaded = self._loaded
        if version == loaded.version:
            return loaded
        import numpy as np

        owners = self._library.vector_owners(self._embedder.name)
        known = dict(zip(loaded.ids, range(len(loaded.ids)), strict=True))
        missing = [passage_id for passage_id, _, has_vector in owners if has_vector and passage_id not in known]
        rows = {passage_id: loaded.matrix[row] for passage_id, row in known.items()}
        for passage_id, vector in self._library.vectors(self._embedder.name, missing) if missing else ():
            rows[passage_id] = np.frombuffer(vector, dtype=np.float32)
        # One that was removed between the two reads has no vector any more.
        owners = [(n, owner, has_vector and n in rows) for n, owner, has_vector in owners]
        kept = [rows[passage_id] for passage_id, _, has_vector in owners if has_vector]
        self._loaded = LoadedVectors(version, owners, np.stack(kept) if kept else None)
        return self._loaded


def _nearest(loaded: LoadedVectors, rows: list[int], vector: "Vector", limit: int) -> list[tuple[int, float]]:
    import numpy as np

    similarity = (loaded.matrix if len(rows) == len(loaded.ids) else loaded.matrix[rows]) @ vector
    if len(rows) == len(loaded.ids):
        rows = list(range(len(rows)))
    count = min(limit, len(rows))
    best = np.argpartition(-similarity, count - 1)[:count]
    return [(loaded.ids[rows[n]], float(similarity[n])) for n in sorted(best.tolist(), key=lambda n: -similarity[n])]
