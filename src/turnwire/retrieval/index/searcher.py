"""Searching from async code: by words, and also by meaning once enough passages have a vector.

Vectors are made in the background and compared by brute force: comparing 13,000 takes a third of a millisecond, so no
approximate index is needed.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from turnwire.core.errors import EmbedderError
from turnwire.retrieval.embedding.contract import Embedder
from turnwire.retrieval.index.library import Library, Passage

if TYPE_CHECKING:
    from turnwire.retrieval.embedding.contract import Vector

logger = logging.getLogger("turnwire.retrieval")

_RANK_CONSTANT = 20
_FADE = 0.9
_CANDIDATES = 200
_BATCH = 32
_MAX_RECENT = 4_096
# Below this share, passages without a vector would rank too low.
_MIN_SHARE = 0.9


class MeaningIndex(Protocol):
    """A search for passages by meaning."""

    async def nearest(self, query: str, limit: int) -> list[tuple[int, float]] | None:
        """Return ids and similarities of passages, most similar first; None while too few passages have a vector."""
        ...

    async def similarities(self, query: str, texts: Sequence[str]) -> list[float] | None:
        """Return the similarity of each text to the query; None while too few passages have a vector."""
        ...


class Searcher:
    """Search over a library that fuses the rankings by words and by meaning."""

    def __init__(self, library: Library, meaning: MeaningIndex | None = None) -> None:
        self.library = library
        self._meaning = meaning

    async def search(self, query: str, *, owner: str | None, limit: int) -> list[Passage]:
        """Return the passages that `owner` may read, best first."""
        if self._meaning is None:
            return await asyncio.to_thread(self.library.search, query, owner=owner, limit=limit)
        by_words, nearest = await asyncio.gather(
            asyncio.to_thread(self.library.search, query, owner=owner, limit=_CANDIDATES),
            self._nearest(self._meaning, query),
        )
        if nearest is None:
            return by_words[:limit]
        ids = [passage_id for passage_id, _ in nearest]
        by_meaning = await asyncio.to_thread(self.library.passages, ids, owner=owner)
        return _fused(by_words, by_meaning)[:limit]

    async def similarities(self, query: str, texts: Sequence[str]) -> list[float] | None:
        """Return the similarity by meaning of each text to the query; None if there is no working embedder."""
        if self._meaning is None:
            return None
        try:
            return await self._meaning.similarities(query, texts)
        except EmbedderError as error:
            logger.warning("the embedder failed, so the answer is chosen by words only: %s", error)
            return None

    async def _nearest(self, meaning: MeaningIndex, query: str) -> list[tuple[int, float]] | None:
        try:
            return await meaning.nearest(query, _CANDIDATES)
        except EmbedderError as error:
            logger.warning("the embedder failed, so the search is by words only: %s", error)
            return None


def _fused(by_words: list[Passage], by_meaning: list[Passage]) -> list[Passage]:
    """Merge two rankings by reciprocal rank fusion."""
    merits: dict[int, float] = {}
    passages: dict[int, Passage] = {}
    for ranking in (by_words, by_meaning):
        for rank, passage in enumerate(ranking):
            merits[passage.id] = merits.get(passage.id, 0) + 1 / (_RANK_CONSTANT + rank + 1)
            passages.setdefault(passage.id, passage)
    ranked = sorted(passages.values(), key=lambda passage: -merits[passage.id])
    top = max((passage.score for passage in by_words), default=1.0)
    return [
        # A passage that only the meaning found has no score of its own: give it one that fits its rank.
        passage if passage.score else structs.replace(passage, score=top * _FADE**rank)
        for rank, passage in enumerate(ranked)
    ]


class VectorIndex:
    """The vectors of a library's passages by one embedder."""

    def __init__(self, library: Library, embedder: Embedder) -> None:
        self._library = library
        self._embedder = embedder
        # Library version, passage ids and vectors, replaced together: a concurrent query must not mix two versions.
        self._loaded: tuple[int, list[int], Any] = (-1, [], None)
        # The same parts of documents come up in many questions.
        self._recent: OrderedDict[str, Vector] = OrderedDict()

    async def nearest(self, query: str, limit: int) -> list[tuple[int, float]] | None:
        ids, matrix = await asyncio.to_thread(self._current)
        if matrix is None:
            return None
        vector = await self._embedder.embed_query(query)
        return await asyncio.to_thread(_nearest, ids, matrix, vector, limit)

    async def similarities(self, query: str, texts: Sequence[str]) -> list[float] | None:
        _, matrix = await asyncio.to_thread(self._current)
        if matrix is None:
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
        while True:
            done, total, batch = await asyncio.to_thread(self._next_batch)
            report(done, total)
            if not batch:
                return made
            vectors = await self._embedder.embed_documents([text for _, text in batch])
            await asyncio.to_thread(self._write, [passage_id for passage_id, _ in batch], vectors)
            made += len(batch)

    async def close(self) -> None:
        await self._embedder.close()

    def _next_batch(self) -> tuple[int, int, list[tuple[int, str]]]:
        with self._library.file.reading() as database:
            done, total = self._counts(database)
            batch = database.execute(
                # The title comes first, because an encoder truncates, and a passage alone may lack its subject.
                "SELECT p.id, d.title || char(10) || p.heading || char(10) || p.text"
                " FROM passages p JOIN documents d ON d.id = p.document_id WHERE NOT EXISTS"
                " (SELECT 1 FROM vectors v WHERE v.passage_id = p.id AND v.embedder = ?) ORDER BY p.id LIMIT ?",
                (self._embedder.name, _BATCH),
            ).fetchall()
        return done, total, batch

    def _counts(self, database: Any) -> tuple[int, int]:
        return database.execute(
            "SELECT (SELECT count(*) FROM vectors WHERE embedder = ?), (SELECT count(*) FROM passages)",
            (self._embedder.name,),
        ).fetchone()

    def _write(self, ids: list[int], vectors: "list[Vector]") -> None:
        with self._library.file.writing() as database:
            for passage_id, vector in zip(ids, vectors, strict=True):
                # The passage may have been removed while it was embedded.
                database.execute(
                    "INSERT OR REPLACE INTO vectors SELECT id, ?, ? FROM passages WHERE id = ?",
                    (self._embedder.name, vector.astype("float32").tobytes(), passage_id),
                )

    def _current(self) -> tuple[list[int], Any]:
        """Return passage ids and vectors, reloaded after a change; the vectors are None if too many are missing."""
        version = self._library.version()
        loaded, ids, matrix = self._loaded
        if version == loaded:
            return ids, matrix
        import numpy as np

        with self._library.file.reading() as database:
            done, total = self._counts(database)
            rows: list[tuple[int, bytes]] = []
            if done >= total * _MIN_SHARE:
                query = "SELECT passage_id, vector FROM vectors WHERE embedder = ? ORDER BY passage_id"
                rows = database.execute(query, (self._embedder.name,)).fetchall()

        ids, matrix = [row[0] for row in rows], None
        if rows:
            matrix = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.float32).reshape(len(rows), -1)
        self._loaded = version, ids, matrix
        return ids, matrix


def _nearest(ids: list[int], matrix: Any, vector: "Vector", limit: int) -> list[tuple[int, float]]:
    import numpy as np

    similarity = matrix @ vector
    count = min(limit, len(ids))
    best = np.argpartition(-similarity, count - 1)[:count]
    return [(ids[n], float(similarity[n])) for n in sorted(best.tolist(), key=lambda n: -similarity[n])]
