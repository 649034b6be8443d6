"""Judging evidence: what to keep, what is missing, whether it is enough.

Without a model, by coverage: the share of the question's telling words that a passage speaks about.
With one, by the model; what it says is checked, and evidence that it invents does not count.
"""

import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct, structs

from turnwire.core.codec import clean_text
from turnwire.core.errors import ModelError
from turnwire.core.events import UsageEvent
from turnwire.core.turns import Message
from turnwire.models.contract import Model
from turnwire.retrieval.evidence import Evidence
from turnwire.retrieval.index.terms import STOP_WORDS, words
from turnwire.retrieval.prompts import REVIEW_INSTRUCTIONS, REVIEW_SCHEMA, passages_json
from turnwire.retrieval.sentences import Matcher

ENOUGH = 0.5
# Only English words that merely ask are known and left out; elsewhere they count, and are seldom in the answer.
_ENOUGH_ELSEWHERE = 0.35
_WORTH_KEEPING = 0.5
_LONGEST_REPLY = 20_000
_LONGEST_EARLIER = 500
_PHRASE = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


class Judgement(Struct, frozen=True, kw_only=True):
    """`kept` and `dropped` are numbers of evidence; `next_queries` is empty if there is nothing left to try."""

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


def judge_by_coverage(matcher: Matcher, evidence: Sequence[Evidence]) -> Judgement:
    covered = {one.index: matcher.coverage(_whole(one)) for one in evidence}
    best = max(evidence, key=lambda one: (covered[one.index], -one.index), default=None)
    if best is None:
        return Judgement(sufficient=False, missing=tuple(matcher.terms), reason="nothing was found")
    share = covered[best.index]
    kept = tuple(one.index for one in evidence if covered[one.index] >= max(share * _WORTH_KEEPING, 0.01))
    matched = matcher.matched(_whole(best))
    sufficient = share >= (ENOUGH if matcher.is_english else _ENOUGH_ELSEWHERE)
    return Judgement(
        sufficient=sufficient,
        kept=kept,
        dropped=tuple(one.index for one in evidence if one.index not in kept),
        matched=tuple(matched),
        missing=tuple(term for term in matcher.terms if term not in matched),
        reason=f"the best passage covers {share:.0%} of what is asked",
    )


def other_queries(question: str, judgement: Judgement, earlier: str | None) -> list[str]:
    """What else could be asked for: with what was said before, only what is missing, only the longest phrase."""
    queries: list[str] = []
    if earlier:
        queries.append(f"{earlier[:_LONGEST_EARLIER]} {question}")
    if judgement.missing and judgement.matched:
        queries.append(" ".join(judgement.missing))
    phrase = _longest_phrase(question)
    if phrase:
        queries.append(phrase)
    return queries


def _longest_phrase(question: str) -> str:
    """The longest run of words that say something: mostly the name of the thing."""
    runs: list[list[str]] = [[]]
    for found in _PHRASE.finditer(question):
        if found[0].lower() in STOP_WORDS:
            runs.append([])
        else:
            runs[-1].append(found[0])
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
    tell: Callable[[UsageEvent], Awaitable[None]],
) -> Judgement:
    """Raises ModelError, also if the reply is not what was asked for; `tell` hears what it cost in any case."""
    text = ""
    prompt = f"Question: {question}\n\nPassages:\n{passages_json(evidence)}"
    stream = model.stream(REVIEW_INSTRUCTIONS, [Message("user", prompt)], schema=REVIEW_SCHEMA)
    try:
        async for piece in stream:
            if isinstance(piece, UsageEvent):
                await tell(piece)
            elif isinstance(piece, str):
                text += piece
                if len(text) > _LONGEST_REPLY:
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
        raise ModelError("The model's review was not of the form asked for.", "bad_answer") from error
    there = [one.index for one in evidence]
    kept = tuple(index for index in there if index in reply.keep)
    sufficient = reply.sufficient and bool(kept)
    together = " ".join(_whole(one) for one in evidence if one.index in kept)
    query = clean_text(reply.next_query or "").strip()[:500]
    return Judgement(
        sufficient=sufficient,
        kept=kept,
        dropped=tuple(index for index in there if index not in kept),
        matched=tuple(matcher.matched(together)),
        missing=tuple(clean_text(told)[:200] for told in reply.missing[:20]),
        next_queries=(query,) if query and not sufficient else (),
        reason=clean_text(reply.reason)[:500],
        method="model",
    )


def _whole(evidence: Evidence) -> str:
    """What a passage says, with the headings that it stands under."""
    return f"{evidence.passage.title} {' '.join(evidence.passage.headings)} {evidence.passage.text}"
