"""Measures of a ranking, of an answer's text, and of a score that separates two groups."""

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence


def ndcg(ranking: Sequence[str], gains: Mapping[str, float], depth: int = 10) -> float:
    """Return the normalised discounted cumulative gain with linear gain; 1 is the best order."""
    best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
    if not best:
        raise ValueError("a question without a relevant document has no best order")
    return _discounted([gains.get(name, 0.0) for name in _first(ranking, depth)]) / _discounted(best[:depth])


def recall(ranking: Sequence[str], gains: Mapping[str, float], depth: int = 10) -> float:
    """Return the share of relevant documents among the first `depth`."""
    relevant = {name for name, gain in gains.items() if gain > 0}
    return len(relevant.intersection(_first(ranking, depth))) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], gains: Mapping[str, float], depth: int = 10) -> float:
    """Return 1 for a relevant document at rank 1, 1/2 at rank 2, 0 if there is none."""
    for rank, name in enumerate(_first(ranking, depth), start=1):
        if gains.get(name, 0.0) > 0:
            return 1 / rank
    return 0.0


def holds_answer(text: str, answers: Iterable[str]) -> bool:
    """Return True if the text has one of the answers, ignoring case, line breaks and citation marks."""
    text = plain(text)
    return any(plain(answer) in text for answer in answers)


def plain(text: str) -> str:
    return " ".join(re.sub(r"\s*\[\d+\]", "", text).split()).casefold()


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Return how often a score of the first group exceeds one of the second; a tie counts half."""
    if not higher or not lower:
        raise ValueError("both groups need a score")
    ordered = sorted(lower)
    wins = sum(bisect.bisect_left(ordered, score) + bisect.bisect_right(ordered, score) for score in higher)
    return wins / (2 * len(higher) * len(lower))


def share(scores: Sequence[float], threshold: float) -> float:
    """Return the share of scores that reach the threshold."""
    return sum(score >= threshold for score in scores) / len(scores)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is not exceeded by this percentage of the values."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _first(ranking: Sequence[str], depth: int) -> list[str]:
    """Return the first `depth` distinct documents; several passages of a document count once."""
    return list(dict.fromkeys(ranking))[:depth]


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
