"""Searching from async code: by words, and by meaning as well where every passage has a vector."""

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
_DEEP = 200


class MeaningIndex(Protocol):
    """Passages by meaning. `nearest` is None while too few of them have a vector to be fair."""

    async def nearest(self, query: str, limit: int) -> list[tuple[int, float]] | None:
        """Ids of passages and how near they are, nearest first."""
        ...


class Searcher:
    def __init__(self, library: Library, meaning: MeaningIndex | None = None) -> None:
        self.library = library
        self._meaning = meaning

    async def search(self, query: str, *, owner: str | None, limit: int) -> list[Passage]:
        """Best first; the best one's score is the highest."""
        if self._meaning is None:
            return await asyncio.to_thread(self.library.search, query, owner=owner, limit=limit)
        by_words, nearest = await asyncio.gather(
            asyncio.to_thread(self.library.search, query, owner=owner, limit=_DEEP),
            self._nearest(self._meaning, query),
        )
        if nearest is None:
            return by_words[:limit]
        ids = [passage_id for passage_id, _ in nearest]
        by_meaning = await asyncio.to_thread(self.library.passages, ids, owner=owner)
        return _fused(by_words, by_meaning)[:limit]

    async def _nearest(self, meaning: MeaningIndex, query: str) -> list[tuple[int, float]] | None:
        try:
            return await meaning.nearest(query, _DEEP)
        except EmbedderError as error:
            logger.warning("searching by words only: %s", error)
            return None


def _fused(by_words: list[Passage], by_meaning: list[Passage]) -> list[Passage]:
    """Reciprocal rank fusion: what both rankings agree on comes first."""
    merit: dict[int, float] = {}
    passages: dict[int, Passage] = {}
    for ranking in (by_words, by_meaning):
        for rank, passage in enumerate(ranking):
            merit[passage.id] = merit.get(passage.id, 0) + 1 / (_RANK_CONSTANT + rank + 1)
            passages.setdefault(passage.id, passage)
    ranked = sorted(passages.values(), key=lambda passage: -merit[passage.id])
    top = max((passage.score for passage in by_words), default=1.0)
    return [
        # What was not found by its words gets a score that fits its rank among those that were.
        one if one.score else structs.replace(one, score=top * _FADE**rank)
        for rank, one in enumerate(ranked)
    ]
