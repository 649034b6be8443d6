"""Finding evidence for a question, with every step told while it happens.

With a model that calls the search tools, the model leads. With no model, or one that calls none, or one
that fails, the manual loop does: search, review by coverage, search again for what is missing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from turnwire.core.errors import ModelError
from turnwire.core.events import Event, ReasoningEvent, StatusEvent, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.core.turns import Message, ToolRequest
from turnwire.models.contract import Model, ToolSpec, ToolWish
from turnwire.retrieval.evidence import RetrievalResult, cite_whole
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.terms import key_terms
from turnwire.retrieval.prompts import AGENT_INSTRUCTIONS, GATHER_ONLY, passages_json, spoken
from turnwire.retrieval.review import Judgement, judge_by_coverage, judge_by_model, other_queries
from turnwire.retrieval.search import LONGEST_QUERY, SEARCH, EventSink, Gathering, reading_index
from turnwire.retrieval.sentences import Matcher, as_sentence
from turnwire.tools.declaration import read_arguments
from turnwire.tools.untrusted_text import framed

# The tools that a model is given to search with. What they return is data, framed so that it stays data.


_LIST_LIMIT = 100
_MOST_LIMIT = 20
_LONGEST_ARGUMENTS = 20_000


def _spec(name: str, description: str, **properties: dict[str, Any]) -> ToolSpec:
    required = [key for key, told in properties.items() if not told.pop("optional", False)]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name, description, schema)


TOOLS = (
    _spec(
        SEARCH,
        "Full-text search in the user's documents. Returns numbered passages.",
        query={"type": "string", "description": "A few telling words."},
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


class SearchTools:
    """Runs the tools that a model wishes for. A wish that makes no sense is answered, not raised."""

    def __init__(self, gathering: Gathering, limit: int) -> None:
        self._gathering = gathering
        self._limit = limit
        self._tools: dict[str, Callable[[dict[str, Any]], Awaitable[str]]] = {
            SEARCH: self._search,
            "read_passage": self._read_passage,
            "list_documents": self._list_documents,
        }

    async def run(self, wish: ToolWish) -> str:
        """What the model is told."""
        tool = self._tools.get(wish.tool)
        args = arguments_of(wish)
        if tool is None:
            await self._gathering.tell(
                StatusEvent(f"The model asked for a tool that is not there: {wish.tool[:80]!r}.")
            )
            return _refusal(f"there is no tool {wish.tool!r}; there is {', '.join(self._tools)}")
        if wish.tool == SEARCH and args is not None:
            # A search tells of itself, in an event of its own kind.
            try:
                return await self._search(args)
            except _WrongArguments as error:
                return _refusal(str(error))
        began = time.perf_counter()
        await self._gathering.tell(ToolCallEvent(wish.call_id, wish.tool, args or {}))
        success, result = False, ""
        try:
            if args is None:
                result = _refusal("the arguments are not a JSON object")
            else:
                result = await tool(args)
                success = True
        except _WrongArguments as error:
            result = _refusal(str(error))
        finally:
            ms = round((time.perf_counter() - began) * 1000, 1)
            await self._gathering.tell(ToolResultEvent(wish.call_id, wish.tool, success, _short(result), ms))
        return result

    async def _search(self, args: dict[str, Any]) -> str:
        query, limit = args.get("query"), args.get("limit", self._limit)
        if not isinstance(query, str) or not query.strip():
            raise _WrongArguments("query: a text is needed")
        if not isinstance(limit, int) or isinstance(limit, bool):
            limit = self._limit
        found = await self._gathering.search(query, max(1, min(limit, _MOST_LIMIT)))
        return passages_json(found)

    async def _read_passage(self, args: dict[str, Any]) -> str:
        evidence = self._gathering.book.get(args.get("number"))
        if evidence is None:
            raise _WrongArguments("number: no passage of this number was found; search first")
        near = await self._gathering.around(evidence)
        return passages_json(near)

    async def _list_documents(self, args: dict[str, Any]) -> str:
        search = args.get("search")
        library, owner = self._gathering.searcher.library, self._gathering.owner
        wanted = search if isinstance(search, str) else None
        with reading_index():
            documents = await asyncio.to_thread(library.documents, owner=owner, search=wanted, limit=_LIST_LIMIT)
        return framed([{"name": one.name, "title": one.title, "characters": one.characters} for one in documents])


class _WrongArguments(Exception):
    """The model's arguments do not fit the tool; the message is for the model."""


def arguments_of(wish: ToolWish) -> dict[str, Any] | None:
    """None if they are not a JSON object, or one that nobody needs."""
    return None if len(wish.arguments) > _LONGEST_ARGUMENTS else read_arguments(wish.arguments)


def _refusal(why: str) -> str:
    return framed({"error": why})


def _short(result: str) -> str:
    return result if len(result) <= 2_000 else result[:2_000] + "…"


# The agent loop: a model searches with tools until it has what it needs.


_MOST_CALLS = 6
_MOST_TOOLS_AT_ONCE = 8


class AgentLoop:
    """`has_concluded` is true once the model has had the last word, and not a tool."""

    def __init__(
        self, model: Model, instructions: str, gathering: Gathering, history: Sequence[Message], limit: int
    ) -> None:
        self.has_concluded = False
        self._model = model
        self._instructions = instructions
        self._gathering = gathering
        self._history = spoken(history)
        self._tools = SearchTools(gathering, limit)

    async def run(self, question: str) -> AsyncIterator[str]:
        """Yields the model's words, once there is evidence for them. Raises ModelError."""
        messages = [*self._history, Message("user", question)]
        for call in range(1, _MOST_CALLS + 1):
            offered = TOOLS if call < _MOST_CALLS else ()
            wishes: list[ToolWish] = []
            text = ""
            stream = self._model.stream(self._instructions, messages, tools=offered)
            try:
                async for piece in stream:
                    if isinstance(piece, str):
                        text += piece
                        if len(self._gathering.book):
                            yield piece
                    elif isinstance(piece, ToolWish):
                        wishes.append(piece)
                    else:
                        assert isinstance(piece, ReasoningEvent | UsageEvent)
                        await self._gathering.tell(piece)
            finally:
                await stream.aclose()
            if not wishes:
                self.has_concluded = bool(text.strip())
                return
            if text and len(self._gathering.book):
                yield "\n\n"  # It said something on the way; what comes next is another thought.
            messages += await self._run_tools(text, wishes[:_MOST_TOOLS_AT_ONCE])

    async def _run_tools(self, text: str, wishes: list[ToolWish]) -> list[Message]:
        requests = tuple(ToolRequest(wish.call_id, wish.tool, arguments_of(wish) or {}) for wish in wishes)
        told = await asyncio.gather(*(self._tools.run(wish) for wish in wishes))
        results = [Message("tool", text, call_id=wish.call_id) for wish, text in zip(wishes, told, strict=True)]
        return [Message("assistant", text, tool_calls=requests), *results]


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
        weights = await asyncio.to_thread(searcher.library.weights, key_terms(question))
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
