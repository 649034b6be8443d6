"""Synthesis: the answer, streamed while a model writes it from the evidence.

Without a model, or when it fails, the best sentences are quoted instead. Text that was shown is never taken back: a
failed model leaves its text, a break, and the quotations.
"""

import logging
from collections.abc import AsyncIterator, Sequence

from turnwire.core.errors import AgentError
from turnwire.core.events import Event, ReasoningEvent, ResponseEvent, StatusEvent, UsageEvent
from turnwire.core.turns import Message
from turnwire.models.contract import Model, ToolCallRequest
from turnwire.retrieval.citations import MarkerStream
from turnwire.retrieval.evidence import Evidence, RetrievalResult, cite
from turnwire.retrieval.extractive import pick_sentences
from turnwire.retrieval.prompts import SYNTHESIS_INSTRUCTIONS, passages_json, prompt_history
from turnwire.retrieval.sentences import as_sentence

logger = logging.getLogger("turnwire.retrieval")

MAX_SENTENCES = 3
MAX_NEAREST = 3
BREAK = "\n\n---\n\n"
NO_ANSWER = "The model wrote no answer."
NOT_FOUND = "I did not find this in your documents."
_MAX_PROMPT_PASSAGES = 8


async def stream_synthesis(
    result: RetrievalResult, *, model: Model | None = None, history: Sequence[Message] = ()
) -> AsyncIterator[Event | str]:
    """Yield the answer piece by piece, citations as their markers complete, and a `response` with the mode.

    Raise AgentError `chat_failed` only if not even a quotation can be found.
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
    cause, evidence = result.model_failed, result.evidence[:_MAX_PROMPT_PASSAGES]
    markers = MarkerStream({item.index: item for item in evidence}.get)
    if cause is None:
        messages = [*prompt_history(history), _prompt(result.question, evidence)]
        try:
            async for piece in _stream_model(model, messages, markers):
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


async def _stream_model(model: Model, messages: Sequence[Message], markers: MarkerStream) -> AsyncIterator[Event | str]:
    stream = model.stream(SYNTHESIS_INSTRUCTIONS, messages)
    try:
        async for piece in stream:
            if isinstance(piece, str):
                for shown in markers.feed(piece):
                    yield shown
            elif isinstance(piece, ReasoningEvent | UsageEvent):
                yield piece
            else:
                assert isinstance(piece, ToolCallRequest)
                logger.warning("the model called a tool that it was not offered; the call is ignored")
    finally:
        await stream.aclose()


def explain(error: Exception) -> str:
    """Return the cause of a model's failure as text that is safe to show."""
    if isinstance(error, AgentError):
        return str(error)
    logger.exception("the model failed with an unexpected error", exc_info=error)
    return f"The model failed ({type(error).__name__})."


def removed_markers(markers: MarkerStream) -> StatusEvent | None:
    """Return a status that names the markers without evidence, if the model wrote any."""
    if not markers.unknown:
        return None
    names = ", ".join(f"[{number}]" for number in dict.fromkeys(markers.unknown))
    return StatusEvent(f"The model cited {names}, which names no evidence; it was taken out of the answer.")


async def stream_fallback(result: RetrievalResult, cause: str, written: MarkerStream) -> AsyncIterator[Event | str]:
    """Stream quotations after the text that a failed model has written."""
    yield StatusEvent(f"{as_sentence(cause)} These are the sentences that answer best.")
    offset = len(written.text)
    if offset:
        gap = written.close_fence() + BREAK
        yield gap
        offset += len(gap)
    async for piece in stream_extract(result, "fallback", offset):
        yield piece


async def stream_extract(result: RetrievalResult, mode: str, offset: int = 0) -> AsyncIterator[Event | str]:
    """Stream the sentences that match the question best, each with its citation."""
    try:
        picks = pick_sentences(result.question, result.matcher, result.evidence, MAX_SENTENCES)
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
    """Stream that nothing was found, with the nearest passages but without an answer."""
    yield NOT_FOUND
    offset = len(NOT_FOUND)
    lead = "\n\nThe nearest passages:\n\n- "
    for item in result.evidence[:MAX_NEAREST]:
        for pick in pick_sentences(result.question, result.matcher, [item], 1):
            marker = f" [{item.index}]"
            yield lead
            yield pick.text
            yield marker
            offset += len(lead)
            yield cite(item, pick.start, pick.end, offset, offset + len(pick.text))
            offset += len(pick.text) + len(marker)
            lead = "\n- "
    yield ResponseEvent("", mode="not_found")


def _chat_failed(error: Exception | None) -> AgentError:
    if error is not None:
        logger.exception("no answer could be put together", exc_info=error)
    return AgentError(
        "No answer could be put together from the documents; try again.", code="chat_failed", retryable=True
    )
