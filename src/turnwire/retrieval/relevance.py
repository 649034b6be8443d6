"""Relevance of blocks without a model: how well a block answers a question, and whether any of them does.

Both are small logistic models over a few features of words and, where an embedder is there, of meaning. Their weights
are constants that `python -m eval.fit` prints; it fits them to questions in `eval/`.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from math import exp, log

from msgspec import Struct, structs

from turnwire.core.sentences import sentence_spans
from turnwire.retrieval.blocks import TextBlock, split_blocks, widened
from turnwire.retrieval.evidence import Evidence, Similarity
from turnwire.retrieval.index.terms import stem, stems, words
from turnwire.retrieval.sentences import Matcher, asks_for_definition, defines

_MAX_PASSAGES = 16
# Comparing one block by meaning takes ten milliseconds, so only the best blocks by words are compared. The limit is
# high, because a block that answers in other words ranks low by words.
_MAX_COMPARED = 40
_MAX_COMPARED_TEXT = 600
# The largest difference in score, a logarithm of odds, between the best block and another one that is shown. Of the
# blocks beyond it, fewer than one in twenty is the first that answers.
_MAX_GAP = 2.5
_MAX_OVERLAP = 0.7
_JUDGED_BLOCKS = 5
_HOW_TO = re.compile(
    r"\bhow (?:do|does|can|could|should|must|would|to|might)\b|\b(?:which|what) (?:command|line|code|option|call)\b"
    r"|\b(?:show|example|install|set ?up|configure|snippet)\b",
    re.IGNORECASE,
)
_NAMED_ROW = re.compile(r"\|\s*(?:`[^`|]+`(?:[,·/\s]*`[^`|]+`)*|\d+)\s*\|")
_MAX_COLUMNS = 3
_MAX_COLUMNS_OF_TABLE = 5
_CODE = re.compile(r"`([^`]+)`")


class RankedBlock(Struct, frozen=True):
    """A block of evidence with its features and its score; a higher score is better."""

    evidence: Evidence
    block: TextBlock
    features: dict[str, float]
    score: float = 0.0


class Ranking(Struct, frozen=True):
    """Blocks, best first. `confidence` is the probability, from 0 to 1, that they answer the question."""

    blocks: tuple[RankedBlock, ...]
    confidence: float
    features: dict[str, float]


def asks_how(question: str) -> bool:
    """Return True if an answer may be code."""
    return _HOW_TO.search(question) is not None


class BlockRanker:
    """Ranker of the blocks of evidence for one question. `similarity` compares texts by meaning."""

    def __init__(self, question: str, matcher: Matcher, similarity: Similarity | None = None) -> None:
        self._question = question
        self._matcher = matcher
        self._similarity = similarity
        # The embedder knows little of other languages.
        self._similarities: dict[str, float] | None = {} if similarity and matcher.is_english else None

    async def rank(self, evidence: Sequence[Evidence]) -> Ranking:
        """Rank the blocks of the evidence, which must be sorted, best first."""
        blocks = [
            RankedBlock(item, block, block_features(self._question, self._matcher, item, rank, block))
            for rank, item in enumerate(evidence[:_MAX_PASSAGES])
            for block in split_blocks(item.passage.text)
            if self._may_answer(block)
        ]
        blocks = _sorted(blocks, WORD_WEIGHTS)
        compared = await self._compare(blocks[:_MAX_COMPARED])
        if compared is not None:
            blocks = _sorted(compared, MEANING_WEIGHTS)
        if not blocks:
            return Ranking((), 0.0, {})
        features = _answer_features(self._matcher, blocks)
        weights = WORD_CONFIDENCE if compared is None else MEANING_CONFIDENCE
        return Ranking(tuple(blocks), _confidence(features, weights), features)

    def _may_answer(self, block: TextBlock) -> bool:
        if block.has_code:
            return block.has_announced_code or asks_how(self._question)
        if block.kind != "table":
            return True
        last_row = block.text.rpartition("\n")[2]
        # A row of settings, metrics, statuses or the like answers only a question that names it.
        if row := _NAMED_ROW.match(last_row):
            names = _CODE.findall(row[0]) or [row[0].strip("| ")]
            return any(name in self._question for name in names)
        # One row of a wide table cannot be read alone, and a very wide one not at a glance.
        return last_row.count("|") - 1 <= (_MAX_COLUMNS_OF_TABLE if len(block.parts) > 1 else _MAX_COLUMNS)

    async def _compare(self, blocks: Sequence[RankedBlock]) -> list[RankedBlock] | None:
        """Return the blocks with their similarity to the question as a feature; None without an embedder."""
        if self._similarity is None or self._similarities is None:
            return None
        known, texts = self._similarities, [_compared_texts(ranked) for ranked in blocks]
        new = [text for text in dict.fromkeys(chain.from_iterable(texts)) if text not in known]
        found = await self._similarity(self._question, new) if new else []
        if found is None:
            self._similarities = None
            return None
        known.update(zip(new, found, strict=True))
        return [
            structs.replace(
                ranked, features={**ranked.features, **_similarity_features([known[text] for text in group])}
            )
            for ranked, group in zip(blocks, texts, strict=True)
        ]


def _compared_texts(ranked: RankedBlock) -> list[str]:
    # The heading comes first, because a part alone may lack its subject.
    passage = ranked.evidence.passage
    heading = passage.headings[-1] if passage.headings else passage.title
    return [f"{heading}: {part}"[:_MAX_COMPARED_TEXT] for part in ranked.block.parts]


def _similarity_features(similarities: Sequence[float]) -> dict[str, float]:
    return {"similarity": max(similarities), "mean_similarity": sum(similarities) / len(similarities)}


def _sorted(blocks: Sequence[RankedBlock], weights: Mapping[str, float]) -> list[RankedBlock]:
    scored = [structs.replace(ranked, score=weigh(ranked.features, weights)) for ranked in blocks]
    return sorted(scored, key=lambda ranked: (-ranked.score, ranked.evidence.index, ranked.block.start))


def weigh(features: Mapping[str, float], weights: Mapping[str, float]) -> float:
    return sum(weights.get(name, 0.0) * value for name, value in features.items())


def block_features(
    question: str, matcher: Matcher, evidence: Evidence, rank: int, block: TextBlock
) -> dict[str, float]:
    passage = evidence.passage
    headings = " ".join((passage.title, *passage.headings))
    last_heading = passage.headings[-1] if passage.headings else passage.title
    length = sum(1 for _ in words(block.text))
    heading_words = [stem(word) for word in words(last_heading)]
    wants_definition = asks_for_definition(question)
    return {
        "coverage": matcher.coverage(block.text),
        "part_coverage": max(map(matcher.coverage, block.parts)),
        "coverage_with_headings": matcher.coverage(f"{headings} {block.text}"),
        "heading_coverage": matcher.coverage(headings),
        "heading_match": sum(matcher.contains(word) for word in heading_words) / max(1, len(heading_words)),
        "rank": -log(1 + rank / 4),
        "strength": evidence.strength,
        "definition": float(wants_definition and _defines(matcher, block.text)),
        "lead_in": float(block.text.endswith(":")),
        "long": float(length > 90),
        "code": float(block.kind == "code"),
        "table": float(block.kind == "table"),
        "list": float(block.kind == "list"),
    }


def _defines(matcher: Matcher, text: str) -> bool:
    lines = (line.lstrip("|-*#> ").replace("*", "") for line in text.split("\n"))
    return any(defines(matcher, line[slice(*span)]) for line in lines for span in sentence_spans(line)[:2])


def select_blocks(ranking: Ranking, count: int) -> list[RankedBlock]:
    """Return the best block, widened, and up to `count` - 1 others that are not much weaker and say something else.

    Beside a definition only another definition is related.
    """
    chosen: list[RankedBlock] = []
    for ranked in ranking.blocks:
        if len(chosen) == count or (chosen and ranked.score < chosen[0].score - _MAX_GAP):
            break
        if chosen and ranked.features["definition"] < chosen[0].features["definition"]:
            continue
        if not any(_is_repetition(ranked, other) for other in chosen):
            chosen.append(ranked if chosen else _widened(ranked))
    return chosen


def _widened(ranked: RankedBlock) -> RankedBlock:
    if ranked.features["definition"]:
        return ranked
    return structs.replace(ranked, block=widened(ranked.evidence.passage.text, ranked.block))


def _is_repetition(ranked: RankedBlock, other: RankedBlock) -> bool:
    is_same_passage = ranked.evidence.index == other.evidence.index
    if is_same_passage and ranked.block.start < other.block.end and other.block.start < ranked.block.end:
        return True
    left, right = stems(ranked.block.text), stems(other.block.text)
    return len(left & right) > _MAX_OVERLAP * max(1, min(len(left), len(right)))


def _confidence(features: Mapping[str, float], weights: Mapping[str, float]) -> float:
    return 1 / (1 + exp(-weigh(features, weights)))


def _answer_features(matcher: Matcher, blocks: Sequence[RankedBlock]) -> dict[str, float]:
    """Return features of the best blocks together, from which follows whether they answer the question."""
    top = blocks[:_JUDGED_BLOCKS]
    features = {
        "constant": 1.0,
        "coverage": max(ranked.features["coverage"] for ranked in top),
        "coverage_with_headings": max(ranked.features["coverage_with_headings"] for ranked in top),
        "first_coverage": top[0].features["coverage_with_headings"],
        "definition": top[0].features["definition"],
        "terms": min(len(matcher.terms), 6) / 6,
    }
    if "similarity" in top[0].features:
        features["similarity"] = max(ranked.features["similarity"] for ranked in blocks)
        features["first_similarity"] = top[0].features["similarity"]
    return features


# Printed by `python -m eval.fit`. The names are those of the features.
WORD_WEIGHTS: dict[str, float] = {
    "coverage": 0.61,
    "part_coverage": 0.66,
    "coverage_with_headings": 3.07,
    "heading_coverage": 1.61,
    "heading_match": 0.97,
    "rank": 0.95,
    "strength": 1.81,
    "definition": 2.95,
    "lead_in": -0.60,
    "long": 0.75,
    "code": 0.22,
    "table": -0.27,
    "list": -0.59,
}
MEANING_WEIGHTS: dict[str, float] = {
    "coverage": 0.46,
    "part_coverage": 0.36,
    "coverage_with_headings": 1.56,
    "heading_coverage": 0.82,
    "heading_match": -0.17,
    "rank": 1.77,
    "strength": 0.59,
    "definition": 1.88,
    "lead_in": -0.23,
    "long": 0.74,
    "code": 0.16,
    "table": 0.24,
    "list": -0.32,
    "similarity": 4.47,
    "mean_similarity": 3.15,
}
WORD_CONFIDENCE: dict[str, float] = {
    "constant": -2.65,
    "coverage": 1.54,
    "coverage_with_headings": 3.20,
    "first_coverage": 1.48,
    "definition": 0.53,
    "terms": 0.58,
}
MEANING_CONFIDENCE: dict[str, float] = {
    "constant": -3.36,
    "coverage": 0.38,
    "coverage_with_headings": 2.33,
    "first_coverage": 1.19,
    "definition": 0.53,
    "terms": -0.34,
    "similarity": 3.00,
    "first_similarity": 2.61,
}
