"""One search for evidence while it goes on: what was seen so far, and who is told of every step."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress

from turnwire.core.errors import AgentError, DocumentNotFoundError
from turnwire.core.events import Event, ReviewEvent, SearchEvent
from turnwire.retrieval.evidence import Evidence, EvidenceBook, hit_of
from turnwire.retrieval.index.records import Passage
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.review import Judgement
from turnwire.retrieval.sentences import Matcher, asks_what, lift_definitions

EventSink = Callable[[Event], Awaitable[None]]
SEARCH = "search_documents"
# A definition need not be among the passages that use a word most.
_MORE = 5
# A question may be as long as a book; what is told of a step must fit into an event.
LONGEST_QUERY = 2_000
_LONGEST_TERM = 100


@contextmanager
def reading_index() -> Generator[None]:
    """Raises AgentError `chat_failed` if the index cannot be read."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise AgentError("The documents could not be searched.", code="chat_failed", retryable=True) from error


class Gathering:
    """`event_sink` is told of each step the moment it happens; `event_collector` is a list of all of them."""

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
        self._reviews = 0

    async def tell(self, event: Event) -> None:
        if self._collector is not None:
            self._collector.append(event)
        if self._sink is not None:
            await self._sink(event)

    async def search(self, query: str, limit: int) -> list[Evidence]:
        """Raises AgentError `chat_failed` if the index cannot be read."""
        query = query[:LONGEST_QUERY]
        self._searches += 1
        step = f"search-{self._searches}"
        if SEARCH not in self.tools_used:
            self.tools_used.append(SEARCH)
        await self.tell(SearchEvent(step, "started", SEARCH, query))
        began = time.perf_counter()
        try:
            with reading_index():
                passages = await self._search(query, limit)
        except AgentError:
            await self.tell(SearchEvent(step, "failed", SEARCH, query, ms=_ms_since(began)))
            raise
        found = self.book.note(passages, SEARCH)
        hits = tuple(hit_of(one, self.matcher) for one in found)
        await self.tell(SearchEvent(step, "finished", SEARCH, query, hits=hits, ms=_ms_since(began)))
        return found

    async def _search(self, query: str, limit: int) -> list[Passage]:
        if not asks_what(query):
            return await self.searcher.search(query, owner=self.owner, limit=limit)
        more = await self.searcher.search(query, owner=self.owner, limit=limit * _MORE)
        return lift_definitions(self.matcher, more)[:limit]

    async def around(self, evidence: Evidence) -> list[Evidence]:
        """A passage with its neighbours in the document, numbered like anything else that is found."""
        passages: list[Passage] = []
        for ordinal in range(evidence.passage.ordinal - 1, evidence.passage.ordinal + 2):
            chunk_id = f"{evidence.passage.document_id}:{ordinal}"
            # The first passage has none before it, the last none after it.
            with suppress(DocumentNotFoundError), reading_index():
                passages.append(await asyncio.to_thread(self.searcher.library.passage, chunk_id, owner=self.owner))
        return self.book.note(passages, "read_passage")

    async def reviewed(self, judgement: Judgement, rounds_left: int) -> None:
        self._reviews += 1
        await self.tell(
            ReviewEvent(
                f"review-{self._reviews}",
                self._reviews,
                "approved" if judgement.sufficient else "rejected",
                feedback=judgement.reason or None,
                kept=judgement.kept,
                dropped=judgement.dropped,
                matched=tuple(term[:_LONGEST_TERM] for term in judgement.matched),
                missing=tuple(term[:_LONGEST_TERM] for term in judgement.missing),
                next_queries=judgement.next_queries,
                rounds_left=rounds_left,
                method=judgement.method,
            )
        )


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)
