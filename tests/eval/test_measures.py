"""Tests of the measures on cases computed by hand."""

import math

import pytest

from eval import measures


def test_ndcg_of_the_best_order_is_one() -> None:
    assert measures.ndcg(["a", "b", "x"], {"a": 2, "b": 1}) == pytest.approx(1.0)


def test_ndcg_of_a_lower_rank_is_smaller() -> None:
    assert measures.ndcg(["x", "a"], {"a": 1}) == pytest.approx(1 / math.log2(3))
    gains = {"a": 3, "b": 1}
    best = 3 + 1 / math.log2(3)
    assert measures.ndcg(["b", "a"], gains) == pytest.approx((1 + 3 / math.log2(3)) / best)
    assert measures.ndcg(["x", "y"], gains) == 0.0


def test_ndcg_counts_only_the_first_ranks() -> None:
    ranking = [f"x{number}" for number in range(10)]
    assert measures.ndcg([*ranking, "a"], {"a": 1}) == 0.0
    assert measures.ndcg([*ranking[:9], "a"], {"a": 1}) > 0.0
    many = {f"r{number}": 1.0 for number in range(20)}
    assert measures.ndcg(list(many), many) == pytest.approx(1.0)


def test_ndcg_counts_a_repeated_document_once() -> None:
    assert measures.ndcg(["x", "x", "a"], {"a": 1}) == measures.ndcg(["x", "a"], {"a": 1})
    assert measures.ndcg(["a", "a"], {"a": 1, "b": 1}) < 1.0


def test_recall_and_reciprocal_rank() -> None:
    gains = {"a": 1.0, "b": 2.0, "c": 0.0}
    assert measures.recall(["x", "b"], gains) == 0.5
    assert measures.recall(["x", "b", "a"], gains, depth=2) == 0.5
    assert measures.reciprocal_rank(["c", "b", "a"], gains) == 0.5
    assert measures.reciprocal_rank(["x"], gains) == 0.0


def test_ndcg_without_a_relevant_document_is_refused() -> None:
    with pytest.raises(ValueError, match="no best order"):
        measures.ndcg(["a"], {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It serves on port 8420 [1].", True),
        ("IT SERVES\n  on PORT 8420.", True),
        ("It serves on port [2] 8420", True),
        ("It serves on port 842.", False),
    ],
)
def test_answer_is_found_despite_case_spacing_and_citations(text: str, expected: bool) -> None:
    assert measures.holds_answer(text, ["nothing", "port 8420"]) is expected


def test_auc_is_the_share_of_ordered_pairs() -> None:
    assert measures.auc([2, 3], [0, 1]) == 1.0
    assert measures.auc([0, 1], [2, 3]) == 0.0
    assert measures.auc([1, 1], [1]) == 0.5
    assert measures.auc([1, 3], [2, 2]) == 0.5
    with pytest.raises(ValueError, match="both groups"):
        measures.auc([], [1])


def test_share_mean_and_percentile() -> None:
    assert measures.share([0.4, 0.5, 0.6, 0.7], 0.5) == 0.75
    assert measures.mean([1, 2, 3]) == 2
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [measures.percentile(values, percent) for percent in (0, 50, 95, 100)] == [1, 3, 5, 5]
