"""The agent that answers from documents: collect evidence, review it, write the answer from it, cite every sentence."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import structs

from turnwire.core.errors import ModelError
from turnwire.core.log.emit import emit
from turnwire.core.log.events import Event, ResponseEvent, StatusEvent
from turnwire.core.log.turns import Message, Turn
from turnwire.models.contract import Model
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval.citations import MarkerStream
from turnwire.retrieval.collection import LIMIT, AgentLoop, EvidenceCollector, collect_evidence, match_question
from turnwire.retrieval.index.library import DocumentLibrary
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.terms import words
from turnwire.retrieval.prompts import AGENT_INSTRUCTIONS, ANSWER_DIRECTLY
from turnwire.retrieval.search import EvidenceSearch, map_index_errors
from turnwire.retrieval.synthesis import NO_ANSWER, explain, removed_markers, stream_fallback, stream_synthesis

Notices = Callable[[], AsyncIterator[str]]


async def _no_notices() -> AsyncIterator[str]:
    return
    yield


class RetrievalAgent:
    """Agent that answers from the documents that the turn's principal may read.

    Options of a turn: `review` (default true) and `answer`, "synthesis" (default) or "direct". A direct answer is the
    model's own text after its searches, instead of a second call that writes from the evidence. `notices` yields
    status texts before a turn, such as that documents are still being read.

    The model options are for the model that writes the answer. Without a model they have no effect.
    """

    description = "Answers from documents, and cites its source for every sentence."
    takes_model_options = ("temperature", "top_p", "max_tokens")

    def __init__(self, searcher: Searcher, model: Model | None = None, notices: Notices = _no_notices) -> None:
        self._searcher = searcher
        self._model = model
        self._notices = notices

    async def close(self) -> None:
        if self._model is not None:
            await self._model.close()

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        async for text in self._notices():
            yield StatusEvent(text)
        if reply := await small_talk_reply(turn.message, self._searcher.library, turn.principal, turn.history):
            yield reply
            yield ResponseEvent("", mode="greeting")
            return
        began = time.perf_counter()
        retrieved: float | None = None
        if self._model is not None and turn.options.get("answer") == "direct":
            pieces = self._answer_directly(turn, _writer(self._model, turn))
        else:
            result = await collect_evidence(
                turn.message,
                self._searcher,
                owner=turn.principal,
                model=self._model,
                review=turn.options.get("review", True),
                history=turn.history,
                event_sink=_emit,
            )
            retrieved = time.perf_counter()
            model = _writer(self._model, turn) if self._model is not None else None
            pieces = stream_synthesis(result, model=model, history=turn.history)
        async for piece in pieces:
            if retrieved is None and isinstance(piece, str | ResponseEvent):
                retrieved = time.perf_counter()  # In a direct answer, the first text of the model ends the search.
            if isinstance(piece, ResponseEvent):
                assert retrieved is not None
                phases = {"retrieval_ms": retrieved - began, "synthesis_ms": time.perf_counter() - retrieved}
                timings = {name: round(seconds * 1000, 1) for name, seconds in phases.items()}
                yield structs.replace(piece, timings=timings)
            else:
                yield piece

    async def _answer_directly(self, turn: Turn, model: Model) -> AsyncIterator[Event | str]:
        """Stream the model's own text, with its markers checked."""
        matcher = await match_question(turn.message, self._searcher, turn.principal)
        search = EvidenceSearch(self._searcher, matcher, turn.principal, _emit, None)
        review = turn.options.get("review", True)
        collector = EvidenceCollector(search, turn.message, model, turn.history, review=review)
        loop = AgentLoop(model, AGENT_INSTRUCTIONS + ANSWER_DIRECTLY, search, turn.history, LIMIT)
        markers = MarkerStream(search.book.get)
        cause = None
        try:
            async for piece in loop.run(turn.message):
                for shown in markers.feed(piece):
                    yield shown
        except Exception as error:
            cause = explain(error)
            if isinstance(error, ModelError):
                await collector.note_failure(error)
        for shown in markers.finish():
            yield shown
        if notice := removed_markers(markers):
            yield notice
        if cause is None and loop.has_concluded and markers.has_prose:
            yield ResponseEvent("", mode="direct", model=model.name)
            return
        result = await collector.result()
        # Text that was shown is never taken back, so a second answer can only follow it.
        if markers.text:
            fallback = stream_fallback(result, cause or NO_ANSWER, markers, model.name)
        else:
            fallback = stream_synthesis(result, model=model, history=turn.history)
        async for piece in fallback:
            yield piece


def _writer(model: Model, turn: Turn) -> Model:
    """Return the model with the client's options."""
    return model.with_options(turn.model_options) if isinstance(model, OpenAIModel) else model


async def _emit(event: Event) -> None:
    emit(event)


# Small talk: messages that ask for nothing the documents could answer get a fixed reply.

_GREETING = re.compile(
    r"(?:hi|hello|hey|hiya|howdy|yo|greetings|welcome|hallo|bonjour|hola|ciao|good (?:morning|afternoon|evening|day)"
    r"|how are you|how do you do|how is it going|what s up|whats up|test|testing|ping)"
)
_THANKS = re.compile(
    r"(?:(?:ok|okay|great|cool|nice|perfect|awesome|good) ){0,3}(?:many )?"
    r"(?:thanks?|thank you|thx|cheers|danke|merci|gracias|bye|goodbye|good night|see you"
    r"|ok|okay|great|cool|nice|perfect)"
)
_FILLER = re.compile("there|you|everybody|all|so|very|much|a|lot|again|then|for|your|help|bot|assistant|turnwire")
# A question of only these words names no subject of its own.
_EMPTY = re.compile(
    "what|who|how|why|where|when|is|are|was|do|does|did|can|could|this|that|it|these|those|they|you|i|me|we|us|my|your"
    "|to|a|the|of|about|mean|means|work|works|help|please|tell|show|explain|more|and|so|ok|okay|here"
)
_EXAMPLES = ("What is a turn?", "What happens when the process is killed?", "How do I write my own agent?")
_MAX_SMALL_TALK_WORDS = 8
_EXAMPLE_COUNT = 3


async def small_talk_reply(
    message: str, library: DocumentLibrary, owner: str | None, history: Sequence[Message]
) -> str | None:
    """Return the reply to a greeting, to thanks, or to a question without a subject; None for any other message."""
    text = list(words(message.replace("'", " ").replace("’", " ")))
    if len(text) > _MAX_SMALL_TALK_WORDS:
        return None
    core = " ".join(word for word in text if not _FILLER.fullmatch(word))
    if _THANKS.fullmatch(core):
        lead = "You are welcome. Ask me anything else about the documents, for example:"
    elif _GREETING.fullmatch(core) or _GREETING.fullmatch(" ".join(text)):
        lead = "Hello! I answer questions from the documents here, for example:"
    elif text and not history and all(_EMPTY.fullmatch(word) for word in text):
        # In a conversation, such a question refers to an earlier message.
        lead = "I answer questions from the documents here. Say what you want to know about, for example:"
    else:
        return None
    with map_index_errors():
        questions = await asyncio.to_thread(_questions, library, owner)
    return "\n".join((f"{lead}\n", *(f"- {question}" for question in questions)))


def _questions(library: DocumentLibrary, owner: str | None) -> Sequence[str]:
    if any(library.roots().values()):
        return _EXAMPLES
    documents = library.documents(owner=owner, limit=_EXAMPLE_COUNT)
    return [f"What does “{document.title or document.name}” say?" for document in documents]
