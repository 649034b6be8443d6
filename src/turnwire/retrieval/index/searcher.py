"""Searching from async code: by words, and also by meaning once enough passages have a vector."""

import asyncio
import logging
from typing import Protocol

from msgspec import structs

from turnwire.core.errors import EmbedderError
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.records import Passage

logger = logging.getLogger("turnwire.retrieval")

_RANK_CONSTANT = 20
_FADE = 0.9
_CANDIDATES = 200


class MeaningIndex(Protocol):
    """A search for passages by meaning."""

    async def nearest(self, query: str, limit: int) -> list[tuple[int, float]] | None:
        """Return ids and similarities of passages, most similar first; None while too few passages have a vector."""
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
