"""Finding evidence for a question, with every step told while it happens.

With a model that calls the search tools, the model leads. With no model, or one that calls none, or one
that fails, the manual loop does: search, review by coverage, search again for what is missing.
"""

import asyncio
from collections.abc import Sequence

from turnwire.core.errors import ModelError
from turnwire.core.events import Event, StatusEvent
from turnwire.core.turns import Message
from turnwire.models.contract import Model
from turnwire.retrieval.agent_loop import AgentLoop
from turnwire.retrieval.evidence import RetrievalResult, cite_whole
from turnwire.retrieval.gathering import LONGEST_QUERY, EventSink, Gathering, reading_index
from turnwire.retrieval.index.terms import telling_terms
from turnwire.retrieval.matching import Matcher
from turnwire.retrieval.prompts import AGENT_INSTRUCTIONS, GATHER_ONLY
from turnwire.retrieval.review import Judgement, judge_by_coverage, judge_by_model, other_queries
from turnwire.retrieval.searching import Searcher
from turnwire.retrieval.sentences import as_sentence

ROUNDS = 3
LIMIT = 8
_REVIEWED = 12
# After these there is no use in asking the model again in the same turn.
_HOPELESS = frozenset({"model_unavailable", "rate_limited", "model_refused"})


async def collect_evidence(
    question: str,
    searcher: Searcher,
    *,
    owner: str | None = None,
    model: Model | None = None,
    review: bool = True,
    history: Sequence[Message] = (),
    event_sink: EventSink | None = None,
    event_collector: list[Event] | None = None,
) -> RetrievalResult:
    """What the documents say about a question.

    `event_sink` is awaited with each event the moment it happens; `event_collector` gets all of them.
    Documents of others than `owner` are not seen. Raises AgentError `chat_failed` if nothing can be searched.
    """
    matcher = await match_question(question, searcher)
    gathering = Gathering(searcher, matcher, owner, event_sink, event_collector)
    collecting = Collecting(gathering, question, model, history, review=review)
    if model is not None:
        await collecting.let_model_search()
    return await collecting.result()


async def match_question(question: str, searcher: Searcher) -> Matcher:
    with reading_index():
        weights = await asyncio.to_thread(searcher.library.weights, telling_terms(question))
    return Matcher(question, weights)


class Collecting:
    """The rounds of one question: who searches, who judges, and when it is enough."""

    def __init__(
        self, gathering: Gathering, question: str, model: Model | None, history: Sequence[Message], *, review: bool
    ) -> None:
        self.gathering = gathering
        self.model_failed: str | None = None
        self._question = question
        self._model = model
        self._history = history
        self._review = review

    async def let_model_search(self) -> None:
        assert self._model is not None
        loop = AgentLoop(self._model, AGENT_INSTRUCTIONS + GATHER_ONLY, self.gathering, self._history, LIMIT)
        try:
            async for _ in loop.run(self._question):
                pass  # Its own words are not wanted here: the answer is written from the evidence.
        except ModelError as error:
            await self.note_failure(error)

    async def note_failure(self, error: ModelError) -> None:
        await self.gathering.tell(StatusEvent(f"{as_sentence(str(error))} Searching goes on without it."))
        if error.code in _HOPELESS:
            self.model_failed = str(error)

    async def result(self) -> RetrievalResult:
        """Searches, if nothing was found yet, and judges; at most three rounds."""
        gathering, tried = self.gathering, {self._question[:LONGEST_QUERY]}
        if not len(gathering.book):
            await gathering.search(self._question, LIMIT)
        judgement = await self._judge()
        for rounds_left in range(ROUNDS - 1, -1, -1):
            query = None
            if self._review and not judgement.sufficient and rounds_left:
                query = self._next_query(judgement, tried)
            if self._review:
                await gathering.reviewed(judgement.with_query(query), rounds_left if query else 0)
            if query is None:
                break
            tried.add(query)
            await gathering.search(query, LIMIT)
            judgement = await self._judge()
        return self._conclude(judgement)

    def _next_query(self, judgement: Judgement, tried: set[str]) -> str | None:
        """What the judgement asks for, or what else could be asked for."""
        earlier = next((one.content for one in reversed(self._history) if one.role == "user"), None)
        queries = [*judgement.next_queries, *other_queries(self._question, judgement, earlier)]
        return next((query for long in queries if (query := long[:LONGEST_QUERY]) not in tried), None)

    async def _judge(self) -> Judgement:
        evidence, matcher = self.gathering.book.ranked()[:_REVIEWED], self.gathering.matcher
        if self._review and evidence and self._model is not None and self.model_failed is None:
            try:
                return await judge_by_model(self._model, self._question, matcher, evidence, self.gathering.tell)
            except ModelError as error:
                await self.note_failure(error)
        return judge_by_coverage(matcher, evidence)

    def _conclude(self, judgement: Judgement) -> RetrievalResult:
        gathering = self.gathering
        ranked = gathering.book.ranked()
        kept = [one for one in ranked if one.index in judgement.kept] if self._review else ranked
        evidence = tuple(kept or ranked)
        return RetrievalResult(
            question=self._question,
            evidence=evidence,
            citations=tuple(cite_whole(one) for one in evidence),
            sufficient=bool(evidence) and (judgement.sufficient or self._trusts_model()),
            matcher=gathering.matcher,
            tools_used=tuple(gathering.tools_used),
            model_failed=self.model_failed,
        )

    def _trusts_model(self) -> bool:
        """With the review switched off a model sees for itself whether the passages answer."""
        return not self._review and self._model is not None and self.model_failed is None
