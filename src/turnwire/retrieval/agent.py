"""The agent that answers from documents: find evidence, judge it, write the answer from it, cite every sentence."""

import time
from collections.abc import AsyncIterator, Callable

from turnwire.core.emit import emit
from turnwire.core.errors import ModelError
from turnwire.core.events import Event, ResponseEvent, StatusEvent
from turnwire.core.turns import Turn
from turnwire.models.contract import Model
from turnwire.retrieval.citations import MarkerStream
from turnwire.retrieval.collection import LIMIT, AgentLoop, Collecting, collect_evidence, match_question
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.prompts import AGENT_INSTRUCTIONS, ANSWER_DIRECTLY
from turnwire.retrieval.search import Gathering
from turnwire.retrieval.synthesis import NO_ANSWER, explain, removed_markers, stream_fallback, stream_synthesis

Notices = Callable[[], AsyncIterator[str]]


async def _no_notices() -> AsyncIterator[str]:
    return
    yield


class RetrievalAgent:
    """Answers from the documents that the turn's principal may read.

    A turn's options: `review` (default true) and `answer`, "synthesis" (default) or "direct": the
    model's own last words after its searches, instead of an answer written anew from the evidence.
    `notices` is what there is to tell before a turn can begin, such as that documents are still being read.
    """

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
        began = time.perf_counter()
        retrieved: float | None = None
        if self._model is not None and turn.options.get("answer") == "direct":
            pieces = self._answer_directly(turn, self._model)
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
            pieces = stream_synthesis(result, model=self._model, history=turn.history)
        async for piece in pieces:
            if retrieved is None and isinstance(piece, str | ResponseEvent):
                retrieved = time.perf_counter()  # Where a model leads, its first word is the end of its search.
            if isinstance(piece, ResponseEvent):
                assert retrieved is not None
                phases = {"retrieval_ms": retrieved - began, "synthesis_ms": time.perf_counter() - retrieved}
                timings = {name: round(seconds * 1000, 1) for name, seconds in phases.items()}
                yield ResponseEvent(piece.content, mode=piece.mode, timings=timings)
            else:
                yield piece

    async def _answer_directly(self, turn: Turn, model: Model) -> AsyncIterator[Event | str]:
        """The model's own words, as it says them, with their markers checked like any answer's."""
        matcher = await match_question(turn.message, self._searcher)
        gathering = Gathering(self._searcher, matcher, turn.principal, _emit, None)
        review = turn.options.get("review", True)
        collecting = Collecting(gathering, turn.message, model, turn.history, review=review)
        loop = AgentLoop(model, AGENT_INSTRUCTIONS + ANSWER_DIRECTLY, gathering, turn.history, LIMIT)
        markers = MarkerStream(gathering.book.get)
        cause = None
        try:
            async for piece in loop.run(turn.message):
                for shown in markers.feed(piece):
                    yield shown
        except Exception as error:
            cause = explain(error)
            if isinstance(error, ModelError):
                await collecting.note_failure(error)
        for shown in markers.finish():
            yield shown
        if notice := removed_markers(markers):
            yield notice
        if cause is None and loop.has_concluded and markers.has_prose:
            yield ResponseEvent("", mode="direct")
            return
        result = await collecting.result()
        # Where something stands already no other answer can begin.
        if markers.text:
            instead = stream_fallback(result, cause or NO_ANSWER, markers)
        else:
            instead = stream_synthesis(result, model=model, history=turn.history)
        async for piece in instead:
            yield piece


async def _emit(event: Event) -> None:
    emit(event)
