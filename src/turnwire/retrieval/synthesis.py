"""Synthesis: the answer, streamed while a model writes it from the evidence.

Without a model, or when it fails, the best sentences are quoted instead. Text that was shown is never taken back: a
failed model leaves its text, a break, and the quotations.
"""

import logging
import re
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from turnwire.core.errors import AgentError
from turnwire.core.events import Event, ReasoningEvent, ResponseEvent, StatusEvent, UsageEvent
from turnwire.core.turns import Message
from turnwire.models.contract import Model, ToolCallRequest
from turnwire.retrieval.citations import MARKER, MarkerStream
from turnwire.retrieval.evidence import Evidence, RetrievalResult, cite
from turnwire.retrieval.index.terms import stems, words
from turnwire.retrieval.prompts import SYNTHESIS_INSTRUCTIONS, passages_json, prompt_history
from turnwire.retrieval.sentences import Matcher, as_sentence, asks_for_definition, defines, sentence_spans

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
        logger.exception("no answer could be composed", exc_info=error)
    return AgentError("No answer could be composed from the documents; try again.", code="chat_failed", retryable=True)


# The sentences that match the question best, quoted from their sources.

_STRENGTH_SHARE = 0.5
_DUPLICATE_OVERLAP = 0.7
_MAX_SENTENCE = 600
_CODE_PENALTY = 0.35
_FENCE_PENALTY = 0.1
_LEAD_IN_PENALTY = 0.2
_DEFINITION_BONUS = 0.25
_FENCE = "```"
_SPACE = re.compile(r"\s+")
_LIST_MARKER = re.compile(r"^(?:[-*+•>]|#{1,6}|\d{1,3}[.)])\s+")
_HEADING = re.compile(r"#{1,6}\s")
_TABLE_HEADER = re.compile(r"^\|.*\|[ \t]*\n(?=\|[\s|:-]+$)", re.MULTILINE)
_ROW_RULE = re.compile(r"^[\s|:+=-]+$")
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_MARKER_OR_CODE = re.compile(rf"(`[^`]+`)|\s?{MARKER}")
_CODE = re.compile(r"[{}();=<>\\]|::|->|[a-z]_[a-z]|```|~~~")


class Pick(Struct, frozen=True):
    """A chosen sentence: its range in the passage and the text to show."""

    evidence: Evidence
    start: int
    end: int
    text: str
    score: float


def pick_sentences(question: str, matcher: Matcher, evidence: Sequence[Evidence], count: int) -> list[Pick]:
    """Return the best sentences without duplicates.

    Sentences of one passage keep their order, so that they read well. For a definition question the best comes first.
    """
    candidates = [pick for item in evidence for pick in _candidates(question, matcher, item)]
    candidates.sort(key=lambda pick: (-pick.score, pick.evidence.index, pick.start))
    chosen: list[Pick] = []
    chosen_stems: list[set[str]] = []
    for pick in candidates:
        # A sentence with a negative score is shown only if there is no other.
        if len(chosen) == count or (chosen and pick.score < 0):
            break
        pick_stems = stems(pick.text)
        if all(_overlap(pick_stems, other) < _DUPLICATE_OVERLAP for other in chosen_stems):
            chosen.append(pick)
            chosen_stems.append(pick_stems)
    if asks_for_definition(question):
        return chosen
    first = {pick.evidence.index: rank for rank, pick in reversed(list(enumerate(chosen)))}
    return sorted(chosen, key=lambda pick: (first[pick.evidence.index], pick.start))


def _candidates(question: str, matcher: Matcher, evidence: Evidence) -> list[Pick]:
    passage = evidence.passage
    wants_definition = asks_for_definition(question)
    header = _TABLE_HEADER.search(passage.text)
    picks: list[Pick] = []
    for start, end in sentence_spans(passage.text):
        raw = passage.text[start:end]
        text = sentence_text(raw)
        length = len(list(words(text)))
        if not length:
            continue
        covered = matcher.coverage(raw)
        is_heading = _HEADING.match(raw) or (header and header.start() == start)
        is_relevant = covered and length > 2
        score = (1 - _STRENGTH_SHARE) * covered + _STRENGTH_SHARE * evidence.strength - _penalty(raw)
        if wants_definition and defines(matcher, text):
            score += _DEFINITION_BONUS
        score -= 2 if is_heading else 0 if is_relevant else 1
        picks.append(Pick(evidence, start, end, text, score))
    return picks


def _penalty(raw: str) -> float:
    """Return the penalty for a sentence that seldom answers: code outside a fence, or a lead-in."""
    if raw.startswith(_FENCE):
        return _FENCE_PENALTY if len(raw) <= _MAX_SENTENCE else 1.0
    # A sentence that ends with a colon only announces something.
    lead_in = _LEAD_IN_PENALTY if raw.endswith(":") else 0.0
    return lead_in + _CODE_PENALTY * min(1.0, 6 * len(_CODE.findall(raw)) / len(raw))


def sentence_text(raw: str) -> str:
    """Return a sentence as one line, without markup of lists and tables and without citation markers of its source."""
    if _ROW_RULE.match(raw):
        return ""
    if raw.startswith(_FENCE):
        return f"\n\n{raw.rstrip()}\n\n"
    text = _LIST_MARKER.sub("", raw.strip())
    if text.startswith("|"):
        text = ": ".join(cell.strip() for cell in text.strip("| ").split("|") if cell.strip())
    text = _SPACE.sub(" ", _without_markers(_LINK.sub(r"\1", text))).strip()
    return text if len(text) <= _MAX_SENTENCE else text[: _MAX_SENTENCE - 1].rstrip() + "…"


def _without_markers(text: str) -> str:
    """Return a sentence without citation markers, except in code."""
    bare = _MARKER_OR_CODE.sub(lambda match: match[1] or "", text)
    if _LINK.search(bare) or any(match[1] is None for match in _MARKER_OR_CODE.finditer(bare)):
        # Only a forged text nests one marker in another.
        return bare.replace("[", "(").replace("]", ")")
    return bare


def _overlap(left: set[str], right: set[str]) -> float:
    return len(left & right) / max(1, min(len(left), len(right)))
