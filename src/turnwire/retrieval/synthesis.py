"""The answer, written from the evidence alone and streamed while it is written.

With a model it writes; without one, or when the model fails, sentences are quoted as they stand.
What was shown is never taken back: a failing model leaves what it wrote, a break, and the quotations.
"""

import logging
from collections.abc import AsyncIterator, Sequence

from turnwire.core.errors import AgentError
from turnwire.core.events import Event, ReasoningEvent, ResponseEvent, StatusEvent, UsageEvent
from turnwire.core.turns import Message
from turnwire.models.contract import Model, ToolWish
from turnwire.retrieval.citations import MarkerStream
from turnwire.retrieval.evidence import Evidence, RetrievalResult, cite
from turnwire.retrieval.extractive import pick_sentences
from turnwire.retrieval.prompts import SYNTHESIS_INSTRUCTIONS, passages_json, spoken
from turnwire.retrieval.sentences import as_sentence

logger = logging.getLogger("turnwire.retrieval")

SENTENCES = 3
NEAREST = 3
BREAK = "\n\n---\n\n"
NO_ANSWER = "The model wrote no answer."
NOT_FOUND = "I did not find this in your documents."
_PASSAGES_IN_PROMPT = 8


async def stream_synthesis(
    result: RetrievalResult, *, model: Model | None = None, history: Sequence[Message] = ()
) -> AsyncIterator[Event | str]:
    """Yields the answer piece by piece, citations as their markers complete, and a `response` with the mode.

    Raises AgentError `chat_failed` only if there is no way left to answer.
    """
    if not result.sufficient:
        async for piece in stream_not_found(result):
            yield piece
        return
    if model is None:
        yield StatusEvent("No model is configured: these are the sentences that answer best.")
        async for piece in stream_extract(result, "extractive"):
            yield piece
        return
    cause, shown = result.model_failed, result.evidence[:_PASSAGES_IN_PROMPT]
    markers = MarkerStream({one.index: one for one in shown}.get)
    if cause is None:
        messages = [*spoken(history), _prompt(result.question, shown)]
        try:
            async for piece in _by_model(model, messages, markers):
                yield piece
        except Exception as error:
            cause = explain(error)
        for rest in markers.finish():
            yield rest
        if not markers.has_prose:
            cause = cause or NO_ANSWER
        if notice := removed_markers(markers):
            yield notice
    if cause is None:
        yield ResponseEvent("", mode="synthesis")
        return
    async for piece in stream_fallback(result, cause, markers):
        yield piece


def _prompt(question: str, evidence: Sequence[Evidence]) -> Message:
    return Message("user", f"Passages:\n{passages_json(evidence)}\n\nQuestion: {question}")


async def _by_model(model: Model, messages: Sequence[Message], markers: MarkerStream) -> AsyncIterator[Event | str]:
    stream = model.stream(SYNTHESIS_INSTRUCTIONS, messages)
    try:
        async for piece in stream:
            if isinstance(piece, str):
                for shown in markers.feed(piece):
                    yield shown
            elif isinstance(piece, ReasoningEvent | UsageEvent):
                yield piece
            else:
                assert isinstance(piece, ToolWish)
                logger.warning("the model wished for a tool that it was not offered; it is ignored")
    finally:
        await stream.aclose()


def explain(error: Exception) -> str:
    """The cause of a model's failure, in words that are safe to show."""
    if isinstance(error, AgentError):
        return str(error)
    logger.exception("the model failed in a way that was not foreseen", exc_info=error)
    return f"The model failed ({type(error).__name__})."


def removed_markers(markers: MarkerStream) -> StatusEvent | None:
    if not markers.unknown:
        return None
    names = ", ".join(f"[{number}]" for number in dict.fromkeys(markers.unknown))
    return StatusEvent(f"The model cited {names}, which names no evidence; it was taken out of the answer.")


async def stream_fallback(result: RetrievalResult, cause: str, written: MarkerStream) -> AsyncIterator[Event | str]:
    """Quotations in place of what a model could not write, after what it did."""
    yield StatusEvent(f"{as_sentence(cause)} These are the sentences that answer best.")
    offset = len(written.text)
    if offset:
        gap = written.close_fence() + BREAK
        yield gap
        offset += len(gap)
    async for piece in stream_extract(result, "fallback", offset):
        yield piece


async def stream_extract(result: RetrievalResult, mode: str, offset: int = 0) -> AsyncIterator[Event | str]:
    """The sentences that say most of what is asked, each with its source."""
    try:
        picks = pick_sentences(result.question, result.matcher, result.evidence, SENTENCES)
    except Exception as error:
        raise _chat_failed(error) from error
    if not picks:
        raise _chat_failed(None)
    for number, pick in enumerate(picks):
        if number:
            yield " "
            offset += 1
        marker = f" [{pick.evidence.index}]"
        yield pick.text
        yield marker
        yield cite(pick.evidence, pick.start, pick.end, offset, offset + len(pick.text))
        offset += len(pick.text) + len(marker)
    yield ResponseEvent("", mode=mode)


async def stream_not_found(result: RetrievalResult) -> AsyncIterator[Event | str]:
    """Says that it is not there, and shows what came nearest; never an answer."""
    yield NOT_FOUND
    offset = len(NOT_FOUND)
    nearest: dict[int, str] = {}
    for one in result.evidence[:NEAREST]:
        for pick in pick_sentences(result.question, result.matcher, [one], 1):
            lead = "\n\nThe nearest passages:\n\n- " if not nearest else "\n- "
            nearest[one.index] = pick.text
            marker = f" [{one.index}]"
            yield lead
            yield pick.text
            yield marker
            offset += len(lead)
            yield cite(one, pick.start, pick.end, offset, offset + len(pick.text))
            offset += len(pick.text) + len(marker)
    yield ResponseEvent("", mode="not_found")


def _chat_failed(error: Exception | None) -> AgentError:
    if error is not None:
        logger.exception("no answer could be put together", exc_info=error)
    return AgentError(
        "No answer could be put together from the documents; try again.", code="chat_failed", retryable=True
    )
