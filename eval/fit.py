"""Fit the weights of `turnwire.retrieval.relevance` to the bundled questions, and print them.

python -m eval.fit                  both models
python -m eval.fit --confidence     the confidence only, for the ranking as it is

The ranking is a conditional logistic model: of the blocks of a question, those that hold the gold answer should weigh
most. The confidence is a logistic model: answerable questions against those about something else; it needs no gold
answers, so it can be fitted again when the documentation has grown. Both use `own_questions.jsonl` and
`newcomer_questions.jsonl`, and no other questions.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.bench import shelf
from eval.collection import Question
from eval.measures import holds_answer
from eval.own import NEWCOMERS, QUESTIONS, read_own
from turnwire.retrieval import relevance
from turnwire.retrieval.collection import CANDIDATES, match_question
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.relevance import BlockRanker, Ranking
from turnwire.retrieval.search import EvidenceSearch

Matrix = NDArray[np.float64]
_PENALTY = 0.005
_ROUNDS = 1_500
# An answer to a question about something else is half as bad as a refusal of one that could be answered.
_REFUSAL_COST = 2.0


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="eval.fit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--confidence", action="store_true", help="keep the weights of the ranking")
    keeps_ranking = parser.parse_args().confidence
    own = [read_own(path=path) for path in (QUESTIONS, NEWCOMERS)]
    questions = [question for collection in own for question in collection.questions]
    async with shelf(own[0].documents, semantic=True) as filled:
        for prefix, searcher in (("WORD", Searcher(filled.library)), ("MEANING", filled.searcher)):
            names = f"{prefix}_WEIGHTS", f"{prefix}_CONFIDENCE"
            rankings = [(question, await rank(searcher, question.text)) for question in questions]
            weights = getattr(relevance, names[0]) if keeps_ranking else fit_ranking(rankings)
            setattr(relevance, names[0], weights)
            # Ranked again, because the confidence depends on which block is the first.
            rankings = [(question, await rank(searcher, question.text)) for question in questions]
            confidence = fit_confidence(rankings)
            setattr(relevance, names[1], confidence)
            for name, fitted in zip(names, (weights, confidence), strict=True):
                print(f"{name} = {{")
                print("".join(f'    "{feature}": {weight:.2f},\n' for feature, weight in fitted.items()) + "}")


async def rank(searcher: Searcher, question: str) -> Ranking:
    matcher = await match_question(question, searcher, None)
    search = EvidenceSearch(searcher, matcher, None, None, None)
    evidence = await search.run(question, CANDIDATES)
    return await BlockRanker(question, matcher, searcher.similarities).rank(evidence)


def fit_ranking(rankings: Sequence[tuple[Question, Ranking]]) -> dict[str, float]:
    names = _names(ranked.features for _, each in rankings for ranked in each.blocks)
    groups: list[tuple[Matrix, NDArray[np.bool_]]] = []
    for question, each in rankings:
        right = np.array([holds_answer(ranked.block.text, question.answers) for ranked in each.blocks], dtype=bool)
        if right.any() and not right.all():
            groups.append((_matrix([ranked.features for ranked in each.blocks], names), right))

    def gradient(weights: Matrix) -> Matrix:
        total = _PENALTY * len(groups) * weights
        for features, right in groups:
            scores = features @ weights
            share = np.exp(scores - scores.max())
            share /= share.sum()
            wanted = np.where(right, share, 0.0)
            total += features.T @ (share - wanted / wanted.sum())
        return total / len(groups)

    return dict(zip(names, _descend(gradient, len(names)), strict=True))


def fit_confidence(rankings: Sequence[tuple[Question, Ranking]]) -> dict[str, float]:
    names = _names(each.features for _, each in rankings)
    features = _matrix([each.features for _, each in rankings], names)
    answerable = np.array([bool(question.gains) for question, _ in rankings], dtype=np.float64)
    balance = np.where(answerable, _REFUSAL_COST / answerable.sum(), 1 / (1 - answerable).sum())

    def gradient(weights: Matrix) -> Matrix:
        errors = 1 / (1 + np.exp(-(features @ weights))) - answerable
        return features.T @ (errors * balance) + _PENALTY * weights

    return dict(zip(names, _descend(gradient, len(names)), strict=True))


def _names(features: Any) -> list[str]:
    return list(dict.fromkeys(name for each in features for name in each))


def _matrix(rows: Sequence[dict[str, float]], names: Sequence[str]) -> Matrix:
    return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64).reshape(-1, len(names))


def _descend(gradient: Any, size: int) -> Matrix:
    """Minimise by Adam, which needs no step size that fits the features."""
    weights, mean, spread = np.zeros(size), np.zeros(size), np.zeros(size)
    for step in range(1, _ROUNDS + 1):
        slope = gradient(weights)
        mean = 0.9 * mean + 0.1 * slope
        spread = 0.999 * spread + 0.001 * slope**2
        rate = 0.05 if step < _ROUNDS / 2 else 0.01
        weights = weights - rate * (mean / (1 - 0.9**step)) / (np.sqrt(spread / (1 - 0.999**step)) + 1e-8)
    return weights


if __name__ == "__main__":
    asyncio.run(main())
