"""Collecting evidence for a question, with an event for every step.

A model that calls the search tools leads the search. Without a model, or if it fails or calls no tool, the manual loop
does: search, review, search again for the missing terms.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from turnwire.core.errors import ModelError
from turnwire.core.log.events import (
    Event,
    ReasoningEvent,
    ReviewEvent,
    StatusEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.core.sentences import as_sentence
from turnwire.models.contract import Model, ToolCallRequest, ToolSpec
from turnwire.retrieval.evidence import RetrievalResult, cite
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.terms import key_terms
from turnwire.retrieval.prompts import AGENT_INSTRUCTIONS, GATHER_ONLY, framed, passages_json, prompt_history
from turnwire.retrieval.relevance import BlockRanker
from turnwire.retrieval.review import Judgement, judge_by_model, judge_by_ranking, other_queries
from turnwire.retrieval.search import MAX_QUERY, SEARCH, EventSink, EvidenceSearch, map_index_errors, ms_since
from turnwire.retrieval.sentences import Matcher
from turnwire.tools.declaration import read_arguments

ROUNDS = 3
LIMIT = 8
# Without a model, blocks are chosen from more passages than a model would read.
CANDIDATES = 16
_MAX_REVIEWED = 12
_MAX_TERM = 100
# After one of these errors the model is not called again in the same turn.
_FINAL_ERRORS = frozenset({"model_unavailable", "rate_limited", "model_refused"})


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
    """Return what the documents that `owner` may read say about a question.

    `event_sink` is awaited with each event when it happens; `event_collector` gets all of them. Raise AgentError
    `chat_failed` if the index cannot be searched.
    """
    matcher = await match_question(question, searcher, owner)
    search = EvidenceSearch(searcher, matcher, owner, event_sink, event_collector)
    collector = EvidenceCollector(search, question, model, history, review=review)
    if model is not None:
        await collector.let_model_search()
    return await collector.result()


async def match_question(question: str, searcher: Searcher, owner: str | None) -> Matcher:
    with map_index_errors():
        weights = await asyncio.to_thread(searcher.library.weights, key_terms(question), owner=owner)
    return Matcher(question, weights)


class EvidenceCollector:
    """The search and review rounds of one question."""

    def __init__(
        self, search: EvidenceSearch, question: str, model: Model | None, history: Sequence[Message], *, review: bool
    ) -> None:
        self.search = search
        self.model_failed: str | None = None
        self._question = question
        self._model = model
        self._history = history
        self._review = review
        self._reviews = 0
        self._ranker = BlockRanker(question, search.matcher, search.similarities)

    async def let_model_search(self) -> None:
        assert self._model is not None
        loop = AgentLoop(self._model, AGENT_INSTRUCTIONS + GATHER_ONLY, self.search, self._history, LIMIT)
        try:
            async for _ in loop.run(self._question):
                pass  # The model's text is not used: the answer is written from the evidence.
        except ModelError as error:
            await self.note_failure(error)

    async def note_failure(self, error: ModelError) -> None:
        await self.search.emit(StatusEvent(f"{as_sentence(str(error))} Searching goes on without it."))
        if error.code in _FINAL_ERRORS:
            self.model_failed = str(error)

    async def result(self) -> RetrievalResult:
        """Search if there is no evidence yet, and review it, for at most `ROUNDS` rounds."""
        search, tried = self.search, {self._question[:MAX_QUERY]}
        if not len(search.book):
            await search.run(self._question, self._limit)
        judgement = await self._judge()
        for rounds_left in range(ROUNDS - 1, -1, -1):
            query = None
            if self._review and not judgement.sufficient and rounds_left:
                query = self._next_query(judgement, tried)
            if self._review:
                await self._report_review(judgement.with_query(query), rounds_left if query else 0)
            if query is None:
                break
            tried.add(query)
            await search.run(query, self._limit)
            judgement = await self._judge()
        return self._conclude(judgement)

    def _next_query(self, judgement: Judgement, tried: set[str]) -> str | None:
        """Return the first query, of the judgement or derived from it, that was not tried yet."""
        earlier = next((message.content for message in reversed(self._history) if message.role == "user"), None)
        queries = [*judgement.next_queries, *other_queries(self._question, judgement, earlier)]
        return next((query for long in queries if (query := long[:MAX_QUERY]) not in tried), None)

    @property
    def _limit(self) -> int:
        return LIMIT if self._usable_model is not None else CANDIDATES

    @property
    def _usable_model(self) -> Model | None:
        return self._model if self.model_failed is None else None

    async def _judge(self) -> Judgement:
        ranked, matcher = self.search.book.ranked(), self.search.matcher
        if self._review and ranked and (model := self._usable_model) is not None:
            try:
                evidence = ranked[:_MAX_REVIEWED]
                return await judge_by_model(model, self._question, matcher, evidence, self.search.emit)
            except ModelError as error:
                await self.note_failure(error)
        evidence = ranked[:CANDIDATES]
        return judge_by_ranking(matcher, evidence, await self._ranker.rank(evidence))

    async def _report_review(self, judgement: Judgement, rounds_left: int) -> None:
        self._reviews += 1
        await self.search.emit(
            ReviewEvent(
                f"review-{self._reviews}",
                self._reviews,
                "approved" if judgement.sufficient else "rejected",
                feedback=judgement.reason or None,
                kept=judgement.kept,
                dropped=judgement.dropped,
                matched=tuple(term[:_MAX_TERM] for term in judgement.matched),
                missing=tuple(term[:_MAX_TERM] for term in judgement.missing),
                next_queries=judgement.next_queries,
                rounds_left=rounds_left,
                method=judgement.method,
            )
        )

    def _conclude(self, judgement: Judgement) -> RetrievalResult:
        ranked = self.search.book.ranked()
        kept = [item for item in ranked if item.index in judgement.kept] if self._review else ranked
        evidence = tuple(kept or ranked)
        # Without a review, the model itself will see whether the passages answer.
        trusts_model = not self._review and self._usable_model is not None
        return RetrievalResult(
            question=self._question,
            evidence=evidence,
            citations=tuple(cite(item, 0, len(item.passage.text)) for item in evidence),
            sufficient=bool(evidence) and (judgement.sufficient or trusts_model),
            matcher=self.search.matcher,
            tools_used=tuple(self.search.tools_used),
            model_failed=self.model_failed,
            similarity=self.search.similarities,
        )


# The agent loop: the model calls search tools until it has enough evidence.

_MAX_MODEL_CALLS = 6
_MAX_PARALLEL_TOOLS = 8


class AgentLoop:
    """Model calls and tool calls in turn. `has_concluded` is True once the model has answered without a tool call."""

    def __init__(
        self, model: Model, instructions: str, search: EvidenceSearch, history: Sequence[Message], limit: int
    ) -> None:
        self.has_concluded = False
        self._model = model
        self._instructions = instructions
        self._search = search
        self._history = prompt_history(history)
        self._tools = SearchTools(search, limit)

    async def run(self, question: str) -> AsyncIterator[str]:
        """Yield the model's text once there is evidence for it. Raise ModelError."""
        messages = [*self._history, Message("user", question)]
        for number in range(1, _MAX_MODEL_CALLS + 1):
            offered = TOOLS if number < _MAX_MODEL_CALLS else ()
            calls: list[ToolCallRequest] = []
            text = ""
            stream = self._model.stream(self._instructions, messages, tools=offered)
            try:
                async for piece in stream:
                    if isinstance(piece, str):
                        text += piece
                        if len(self._search.book):
                            yield piece
                    elif isinstance(piece, ToolCallRequest):
                        calls.append(piece)
                    else:
                        assert isinstance(piece, ReasoningEvent | UsageEvent)
                        await self._search.emit(piece)
            finally:
                await stream.aclose()
            if not calls:
                self.has_concluded = bool(text.strip())
                return
            if text and len(self._search.book):
                yield "\n\n"  # The text before a tool call is a paragraph of its own.
            messages += await self._run_tools(text, calls[:_MAX_PARALLEL_TOOLS])

    async def _run_tools(self, text: str, calls: list[ToolCallRequest]) -> list[Message]:
        requests = tuple(ToolRequest(call.call_id, call.tool, _arguments(call) or {}) for call in calls)
        outputs = await asyncio.gather(*map(self._tools.run, calls))
        results = [Message("tool", output, call_id=call.call_id) for call, output in zip(calls, outputs, strict=True)]
        return [Message("assistant", text, tool_calls=requests), *results]


# The search tools of the model. Their results are framed as data, so that a document cannot pose as a message.

_MAX_LISTED = 100
_MAX_LIMIT = 20
_MAX_ARGUMENTS = 20_000
_MAX_LOGGED_RESULT = 2_000


def _spec(name: str, description: str, **properties: dict[str, Any]) -> ToolSpec:
    required = [key for key, schema in properties.items() if not schema.pop("optional", False)]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name, description, parameters)


TOOLS = (
    _spec(
        SEARCH,
        "Full-text search in the user's documents. Returns numbered passages.",
        query={"type": "string", "description": "A few distinctive words."},
        limit={"type": "integer", "description": "How many passages, at most 20.", "optional": True},
    ),
    _spec(
        "read_passage",
        "Read a passage in full together with what stands before and after it.",
        number={"type": "integer", "description": "The number of a passage that was found."},
    ),
    _spec(
        "list_documents",
        "List the documents there are.",
        search={"type": "string", "description": "Only those with this in their name or title.", "optional": True},
    ),
)


class _BadSearchArguments(Exception):
    """The model's arguments do not fit the tool; the message is for the model."""


class SearchTools:
    """Runner of the model's tool calls. A call that makes no sense gets an error as its result."""

    def __init__(self, search: EvidenceSearch, limit: int) -> None:
        self._evidence_search = search
        self._limit = limit
        self._tools: dict[str, Callable[[dict[str, Any]], Awaitable[str]]] = {
            SEARCH: self._search,
            "read_passage": self._read_passage,
            "list_documents": self._list_documents,
        }

    async def run(self, call: ToolCallRequest) -> str:
        """Run a tool call and return its result for the model."""
        search, tool, args = self._evidence_search, self._tools.get(call.tool), _arguments(call)
        if tool is None:
            await search.emit(StatusEvent(f"The model called an unknown tool: {call.tool[:80]!r}."))
            return _error(f"there is no tool {call.tool!r}; available tools: {', '.join(self._tools)}")
        # A search emits events of its own kind.
        has_own_events = call.tool == SEARCH and args is not None
        began = time.perf_counter()
        if not has_own_events:
            await search.emit(ToolCallEvent(call.call_id, call.tool, args or {}))
        success, result = False, ""
        try:
            if args is None:
                raise _BadSearchArguments("the arguments are not a JSON object")
            result = await tool(args)
            success = True
        except _BadSearchArguments as error:
            result = _error(str(error))
        finally:
            if not has_own_events:
                logged = result if len(result) <= _MAX_LOGGED_RESULT else result[:_MAX_LOGGED_RESULT] + "…"
                await search.emit(ToolResultEvent(call.call_id, call.tool, success, logged, ms_since(began)))
        return result

    async def _search(self, args: dict[str, Any]) -> str:
        query, limit = args.get("query"), args.get("limit", self._limit)
        if not isinstance(query, str) or not query.strip():
            raise _BadSearchArguments("query: a text is needed")
        if not isinstance(limit, int) or isinstance(limit, bool):
            limit = self._limit
        return passages_json(await self._evidence_search.run(query, max(1, min(limit, _MAX_LIMIT))))

    async def _read_passage(self, args: dict[str, Any]) -> str:
        evidence = self._evidence_search.book.get(args.get("number"))
        if evidence is None:
            raise _BadSearchArguments("number: no passage of this number was found; search first")
        return passages_json(await self._evidence_search.neighbours(evidence))

    async def _list_documents(self, args: dict[str, Any]) -> str:
        search = args.get("search") if isinstance(args.get("search"), str) else None
        library, owner = self._evidence_search.searcher.library, self._evidence_search.owner
        with map_index_errors():
            documents = await asyncio.to_thread(library.documents, owner=owner, search=search, limit=_MAX_LISTED)
        return framed([{"name": item.name, "title": item.title, "characters": item.characters} for item in documents])


def _arguments(call: ToolCallRequest) -> dict[str, Any] | None:
    """Return the arguments of a call, or None if they are not a JSON object or are too long."""
    return None if len(call.arguments) > _MAX_ARGUMENTS else read_arguments(call.arguments)


def _error(message: str) -> str:
    return framed({"error": message})
