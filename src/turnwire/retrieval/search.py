"""The searches of one question: the evidence found so far, and an event for every step."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from msgspec import structs

from turnwire.core.errors import AgentError, DocumentNotFoundError, StoreError
from turnwire.core.log.events import Event, SearchEvent
from turnwire.core.sentences import sentence_spans
from turnwire.retrieval.evidence import Evidence, EvidenceBook, hit_of
from turnwire.retrieval.index.library import Passage
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.sentences import Matcher, asks_for_definition, defines

EventSink = Callable[[Event], Awaitable[None]]
SEARCH = "search_documents"
# A definition need not be among the passages that use a word most often.
_DEFINITION_CANDIDATES = 200
# A question may be as long as a book, but an event is limited.
MAX_QUERY = 2_000


@contextmanager
def map_index_errors() -> Generator[None]:
    """Raise AgentError `chat_failed` in place of an error of the index."""
    try:
        yield
    except (sqlite3.Error, OSError, StoreError) as error:
        raise AgentError("The documents could not be searched.", code="chat_failed", retryable=True) from error


class EvidenceSearch:
    """Searches that share an evidence book. `event_sink` and `event_collector` get the event of each step."""

    def __init__(
        self,
        searcher: Searcher,
        matcher: Matcher,
        owner: str | None,
        event_sink: EventSink | None,
        event_collector: list[Event] | None,
    ) -> None:
        self.searcher = searcher
        self.matcher = matcher
        self.owner = owner
        self.book = EvidenceBook()
        self.tools_used: list[str] = []
        self._sink = event_sink
        self._collector = event_collector
        self._searches = 0

    async def emit(self, event: Event) -> None:
        if self._collector is not None:
            self._collector.append(event)
        if self._sink is not None:
            await self._sink(event)

    async def run(self, query: str, limit: int) -> list[Evidence]:
        """Search once and return the evidence. Raise AgentError `chat_failed` if the index cannot be read."""
        query = query[:MAX_QUERY]
        self._searches += 1
        step = f"search-{self._searches}"
        if SEARCH not in self.tools_used:
            self.tools_used.append(SEARCH)
        await self.emit(SearchEvent(step, "started", SEARCH, query))
        began = time.perf_counter()
        try:
            with map_index_errors():
                passages = await self._search(query, limit)
        except AgentError:
            await self.emit(SearchEvent(step, "failed", SEARCH, query, ms=ms_since(began)))
            raise
        evidence = self.book.add(passages, SEARCH)
        hits = tuple(hit_of(item, self.matcher) for item in evidence)
        await self.emit(SearchEvent(step, "finished", SEARCH, query, hits=hits, ms=ms_since(began)))
        return evidence

    async def similarities(self, query: str, texts: Sequence[str]) -> list[float] | None:
        """Return the similarity by meaning of each text to the query; None if there is no working embedder."""
        return await self.searcher.similarities(query, texts, owner=self.owner)

    async def _search(self, query: str, limit: int) -> list[Passage]:
        if not asks_for_definition(query):
            return await self.searcher.search(query, owner=self.owner, limit=limit)
        candidates = await self.searcher.search(query, owner=self.owner, limit=max(limit, _DEFINITION_CANDIDATES))
        return _definitions_first(self.matcher, candidates)[:limit]

    async def neighbours(self, evidence: Evidence) -> list[Evidence]:
        """Return a passage with the one before and the one after it, as numbered evidence."""
        passages: list[Passage] = []
        for ordinal in range(evidence.passage.ordinal - 1, evidence.passage.ordinal + 2):
            chunk_id = f"{evidence.passage.document_id}:{ordinal}"
            # The first passage has no predecessor, the last no successor.
            with suppress(DocumentNotFoundError), map_index_errors():
                passages.append(await asyncio.to_thread(self.searcher.library.passage, chunk_id, owner=self.owner))
        return self.book.add(passages, "read_passage")


def ms_since(began: float) -> float:
    """Return the milliseconds since a time of `time.perf_counter`."""
    return round((time.perf_counter() - began) * 1000, 1)


def _definitions_first(matcher: Matcher, passages: Sequence[Passage]) -> list[Passage]:
    """Return the passages with those that define the subject of the question first, each group in its given order.

    Passages with a definition score above all others: a word that is in most passages, such as the subject of a manual,
    adds next to nothing to a score.
    """
    bonus = 1 + max((passage.score for passage in passages), default=0.0)
    defining: list[Passage] = []
    others: list[Passage] = []
    for passage in passages:
        if _has_definition(matcher, passage):
            defining.append(structs.replace(passage, score=passage.score + bonus))
        else:
            others.append(passage)
    return [*defining, *others]


def _has_definition(matcher: Matcher, passage: Passage) -> bool:
    if not matcher.may_define(passage.text):
        return False
    sentences = (passage.text[slice(*span)].lstrip("|-*#> ") for span in sentence_spans(passage.text))
    return any(defines(matcher, sentence) for sentence in sentences)
