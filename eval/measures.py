"""The measures: of a ranking, of an answer's text, and of a score that should tell two groups apart."""

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence


def ndcg(ranking: Sequence[str], gains: Mapping[str, float], depth: int = 10) -> float:
    """Normalised discounted cumulative gain, with linear gain: 1 is the best order there could be."""
    best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
    if not best:
        raise ValueError("a question without a relevant document has no best order")
    return _discounted([gains.get(name, 0.0) for name in _first(ranking, depth)]) / _discounted(best[:depth])


def recall(ranking: Sequence[str], gains: Mapping[str, float], depth: int = 10) -> float:
    """The share of the relevant documents that are among the first `depth`."""
    relevant = {name for name, gain in gains.items() if gain > 0}
    return len(relevant.intersection(_first(ranking, depth))) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], gains: Mapping[str, float], depth: int = 10) -> float:
    """1 for a relevant document at the first place, 1/2 at the second, 0 if there is none."""
    for place, name in enumerate(_first(ranking, depth), start=1):
        if gains.get(name, 0.0) > 0:
            return 1 / place
    return 0.0


def holds_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether any of the answers stands in the text, whatever the case, the line breaks and the citation marks."""
    text = plain(text)
    return any(plain(answer) in text for answer in answers)


def plain(text: str) -> str:
    return " ".join(re.sub(r"\s*\[\d+\]", "", text).split()).casefold()


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """How often a score of the first group is above one of the second; a tie counts half. 0.5 is guessing."""
    if not higher or not lower:
        raise ValueError("both groups need a score")
    below = sorted(lower)
    wins = sum(bisect.bisect_left(below, score) + bisect.bisect_right(below, score) for score in higher)
    return wins / (2 * len(higher) * len(lower))


def share(scores: Sequence[float], threshold: float) -> float:
    """The share of scores that reach the threshold."""
    return sum(score >= threshold for score in scores) / len(scores)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _first(ranking: Sequence[str], depth: int) -> list[str]:
    """The best places; a document that is ranked twice, as two passages can be, counts where it comes first."""
    return list(dict.fromkeys(ranking))[:depth]


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(place + 1) for place, gain in enumerate(gains, start=1))
