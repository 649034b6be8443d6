"""Review of evidence: which passages to keep, what is missing, and whether they suffice.

Without a model it follows from the ranking of blocks, and from coverage, the share of the question's key terms in a
passage. With a model it is the model's own, checked: passages that it invents do not count.
"""

import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct, structs

from turnwire.core.errors import ModelError
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import UsageEvent
from turnwire.core.log.turns import Message
from turnwire.models.contract import Model
from turnwire.retrieval.evidence import Evidence
from turnwire.retrieval.index.terms import STOP_WORDS, words
from turnwire.retrieval.prompts import REVIEW_INSTRUCTIONS, REVIEW_SCHEMA, passages_json
from turnwire.retrieval.relevance import Ranking, select_blocks
from turnwire.retrieval.sentences import Matcher

SUFFICIENT_CONFIDENCE = 0.5
# The confidence is fitted to English. In other languages the stop words, which are not known, count as terms too, and
# are seldom in the answer.
_SUFFICIENT_COVERAGE_NOT_ENGLISH = 0.35
_KEEP_SHARE = 0.5
MAX_QUOTED = 3
"""The most blocks of an answer without a model: the best one, and related ones."""
_MAX_REPLY = 20_000
_MAX_EARLIER_QUESTION = 500
_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


class Judgement(Struct, frozen=True, kw_only=True):
    """The result of a review. `kept` and `dropped` are numbers of evidence."""

    sufficient: bool
    kept: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    next_queries: tuple[str, ...] = ()
    reason: str = ""
    method: str = "coverage"

    def with_query(self, query: str | None) -> "Judgement":
        return structs.replace(self, next_queries=() if query is None else (query,))


def judge_by_ranking(matcher: Matcher, evidence: Sequence[Evidence], ranking: Ranking) -> Judgement:
    """Judge without a model. The passages of the best blocks are kept, and those that cover enough of the question."""
    coverage = {item.index: matcher.coverage(_text_with_headings(item)) for item in evidence}
    best = max(evidence, key=lambda item: (coverage[item.index], -item.index), default=None)
    if best is None:
        return Judgement(sufficient=False, missing=tuple(matcher.terms), reason="nothing was found")
    share = coverage[best.index]
    chosen = {ranked.evidence.index for ranked in select_blocks(ranking, MAX_QUOTED)}
    least = max(share * _KEEP_SHARE, 0.01)
    kept = tuple(item.index for item in evidence if item.index in chosen or coverage[item.index] >= least)
    matched = matcher.matched(_text_with_headings(best))
    if matcher.is_english:
        sufficient = ranking.confidence >= SUFFICIENT_CONFIDENCE
    else:
        sufficient = share >= _SUFFICIENT_COVERAGE_NOT_ENGLISH
    return Judgement(
        sufficient=sufficient,
        kept=kept,
        dropped=tuple(item.index for item in evidence if item.index not in kept),
        matched=tuple(matched),
        missing=tuple(term for term in matcher.terms if term not in matched),
        reason=f"the best passage covers {share:.0%} of what is asked",
    )


def other_queries(question: str, judgement: Judgement, earlier: str | None) -> list[str]:
    """Return further queries: with the earlier question, with the missing terms only, with the longest phrase only."""
    queries: list[str] = []
    if earlier:
        queries.append(f"{earlier[:_MAX_EARLIER_QUESTION]} {question}")
    if judgement.missing and judgement.matched:
        queries.append(" ".join(judgement.missing))
    phrase = _longest_phrase(question)
    if phrase:
        queries.append(phrase)
    return queries


def _longest_phrase(question: str) -> str:
    """Return the longest run of words without a stop word, which is mostly the name of the subject."""
    runs: list[list[str]] = [[]]
    for match in _WORD.finditer(question):
        if match[0].lower() in STOP_WORDS:
            runs.append([])
        else:
            runs[-1].append(match[0])
    longest = max(runs, key=len)
    return " ".join(longest) if len(longest) < len(list(words(question))) else ""


class _ReviewReply(Struct):
    sufficient: bool
    keep: list[int] = []
    missing: list[str] = []
    next_query: str | None = None
    reason: str = ""


async def judge_by_model(
    model: Model,
    question: str,
    matcher: Matcher,
    evidence: Sequence[Evidence],
    emit: Callable[[UsageEvent], Awaitable[None]],
) -> Judgement:
    """Let the model review the evidence; `emit` gets its usage. Raise ModelError, also for a malformed reply."""
    text = ""
    prompt = f"Question: {question}\n\nPassages:\n{passages_json(evidence)}"
    stream = model.stream(REVIEW_INSTRUCTIONS, [Message("user", prompt)], schema=REVIEW_SCHEMA)
    try:
        async for piece in stream:
            if isinstance(piece, UsageEvent):
                await emit(piece)
            elif isinstance(piece, str):
                text += piece
                if len(text) > _MAX_REPLY:
                    raise ModelError("The model's review does not end.", "bad_answer")
    finally:
        await stream.aclose()
    return _checked(text, matcher, evidence)


def _checked(text: str, matcher: Matcher, evidence: Sequence[Evidence]) -> Judgement:
    # Small models wrap JSON in prose or in a fence.
    start, end = text.find("{"), text.rfind("}")
    try:
        reply = msgspec.json.decode(text[start : end + 1].encode("utf-8", "replace"), type=_ReviewReply)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ModelError("The model's review does not have the required form.", "bad_answer") from error
    indexes = [item.index for item in evidence]
    kept = tuple(index for index in indexes if index in reply.keep)
    sufficient = reply.sufficient and bool(kept)
    kept_text = " ".join(_text_with_headings(item) for item in evidence if item.index in kept)
    query = clean_text(reply.next_query or "").strip()[:500]
    return Judgement(
        sufficient=sufficient,
        kept=kept,
        dropped=tuple(index for index in indexes if index not in kept),
        matched=tuple(matcher.matched(kept_text)),
        missing=tuple(clean_text(term)[:200] for term in reply.missing[:20]),
        next_queries=(query,) if query and not sufficient else (),
        reason=clean_text(reply.reason)[:500],
        method="model",
    )


def _text_with_headings(evidence: Evidence) -> str:
    """Return the text of a passage with its title and headings."""
    return f"{evidence.passage.title} {' '.join(evidence.passage.headings)} {evidence.passage.text}"
