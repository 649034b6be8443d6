"""Synthesis: the answer, streamed while a model writes it from the evidence.

Without a model, or when it fails, the blocks that answer best are quoted instead. Text that was shown is never taken
back: a failed model leaves its text, a break, and the quotations.
"""

import logging
from collections.abc import AsyncIterator, Sequence

from turnwire.core.errors import AgentError
from turnwire.core.log.events import Event, ReasoningEvent, ResponseEvent, StatusEvent, UsageEvent
from turnwire.core.log.turns import Message
from turnwire.core.sentences import as_sentence
from turnwire.models.contract import Model, ToolCallRequest
from turnwire.retrieval.blocks import plain_line
from turnwire.retrieval.citations import MarkerStream
from turnwire.retrieval.evidence import RetrievalResult, cite
from turnwire.retrieval.index.library import Passage
from turnwire.retrieval.prompts import SYNTHESIS_INSTRUCTIONS, passages_json, prompt_history
from turnwire.retrieval.relevance import BlockRanker, RankedBlock, select_blocks
from turnwire.retrieval.review import MAX_QUOTED

logger = logging.getLogger("turnwire.retrieval")

BREAK = "\n\n---\n\n"
NO_ANSWER = "The model wrote no answer."
NOT_FOUND = "I did not find this in your documents."
NEW_PARAGRAPH = "\n\n"
_MAX_PROMPT_PASSAGES = 8
_MAX_HEADING = 120


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
        yield StatusEvent("No model is configured: the answer is quoted word for word.")
        async for piece in _simple_summary(result, "extractive"):
            yield piece
        return
    cause, evidence = result.model_failed, result.evidence[:_MAX_PROMPT_PASSAGES]
    markers = MarkerStream({item.index: item for item in evidence}.get)
    if cause is None:
        prompt = f"Passages:\n{passages_json(evidence)}\n\nQuestion: {result.question}"
        messages = [*prompt_history(history), Message("user", prompt)]
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
        yield ResponseEvent("", mode="synthesis", model=model.name)
        return
    async for piece in stream_fallback(result, cause, markers, model.name):
        yield piece


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


async def stream_fallback(
    result: RetrievalResult, cause: str, written: MarkerStream, model: str
) -> AsyncIterator[Event | str]:
    """Stream quotations after the text that a failed model has written."""
    yield StatusEvent(f"{as_sentence(cause)} The answer is quoted word for word instead.")
    offset = len(written.text)
    if offset:
        gap = written.close_fence() + BREAK
        yield gap
        offset += len(gap)
    async for piece in _simple_summary(result, "fallback", offset, model=model, model_error=as_sentence(cause)):
        yield piece


async def _simple_summary(
    result: RetrievalResult, mode: str, offset: int = 0, *, model: str | None = None, model_error: str | None = None
) -> AsyncIterator[Event | str]:
    """Stream the block that answers best below its source's heading, then related blocks as quotations."""
    try:
        chosen = await _chosen(result)
    except Exception as error:
        raise _chat_failed(error) from error
    if not chosen:
        raise _chat_failed(None)
    head = f"**{source_heading(chosen[0].evidence.passage)}**\n\n"
    pieces, offset = _quotation(chosen[0], head, offset)
    for piece in (*pieces, *_cards(chosen[1:], "\n\nRelated:\n\n", offset)):
        yield piece
    yield ResponseEvent("", mode=mode, model=model, model_error=model_error)


async def stream_not_found(result: RetrievalResult) -> AsyncIterator[Event | str]:
    """Stream that nothing was found, with the nearest passages as quotations but without an answer."""
    yield NOT_FOUND
    for piece in _cards(await _chosen(result), "\n\nThe nearest passages:\n\n", len(NOT_FOUND)):
        yield piece
    yield ResponseEvent("", mode="not_found")


async def _chosen(result: RetrievalResult) -> list[RankedBlock]:
    ranker = BlockRanker(result.question, result.matcher, result.similarity)
    return select_blocks(await ranker.rank(result.evidence), MAX_QUOTED)


def _cards(chosen: Sequence[RankedBlock], lead: str, offset: int) -> list[Event | str]:
    """Return the pieces of blocks as quotations of Markdown, from an offset of the answer on."""
    cards: list[Event | str] = []
    for ranked in chosen:
        head = f"{lead}> **{source_heading(ranked.evidence.passage)}**\n>\n> "
        pieces, offset = _quotation(ranked, head, offset, newline="\n> ")
        cards += pieces
        lead = "\n\n"
    return cards


def _quotation(ranked: RankedBlock, head: str, offset: int, newline: str = "\n") -> tuple[list[Event | str], int]:
    """Return the pieces of a block that is quoted at an offset of the answer, and the offset of its end."""
    text, marker = (part.replace("\n", newline) for part in (ranked.block.text, _marker(ranked)))
    start = offset + len(head)
    citation = cite(ranked.evidence, ranked.block.start, ranked.block.end, start, start + len(text))
    return [head, text, marker, citation], start + len(text) + len(marker)


def source_heading(passage: Passage) -> str:
    """Return the title and the headings of a passage as one line that Markdown shows as it is."""
    names = passage.headings if passage.title in passage.headings else (passage.title, *passage.headings)
    line = " › ".join(plain_line(name).replace("*", "").replace("[", "(").replace("]", ")") for name in names)
    return line if len(line) <= _MAX_HEADING else "…" + line[-_MAX_HEADING:]


def _marker(ranked: RankedBlock) -> str:
    # Behind a fence or a table, a marker on the same line would become a part of it.
    text = ranked.block.text
    own_line = text.endswith(("```", "~~~")) or text.rpartition("\n")[2].startswith("|")
    return f"{NEW_PARAGRAPH if own_line else ' '}[{ranked.evidence.index}]"


def _chat_failed(error: Exception | None) -> AgentError:
    if error is not None:
        logger.exception("no answer could be composed", exc_info=error)
    return AgentError("No answer could be composed from the documents; try again.", code="chat_failed", retryable=True)
