"""The part of a large set of cases that `scripts/test` runs."""

import random
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from tests.examples import runs_all, some, without_rotated

MODULES, APIS, STORES = ("a", "b", "c", "d"), ("chat", "responses"), ("memory", "postgres", "sqlite")


@dataclass(frozen=True)
class Case:
    module: str
    api: str


class Item:
    """A collected test with its parameters."""

    def __init__(self, function: str, rotated: tuple[str, ...], parameters: dict[str, Any]) -> None:
        self.nodeid = f"{function}[{parameters}]"
        self.callspec = SimpleNamespace(params=parameters)
        self._marks = [SimpleNamespace(args=rotated)] if rotated else []

    def get_closest_marker(self, name: str) -> Any:
        return next(self.iter_markers(name), None)

    def iter_markers(self, name: str) -> Any:
        return iter(self._marks if name == "rotated" else [])


def kept(*rotated: str, function: str = "test_it", **parameters: Any) -> list[dict[str, Any]]:
    """Return the parameters of the cases that run."""
    combinations = product(*parameters.values())
    items: Any = [Item(function, rotated, dict(zip(parameters, each, strict=True))) for each in combinations]
    run: list[Any] = list(without_rotated(items))
    return [item.callspec.params for item in run]


def test_cases_without_rotated_parameters_all_run() -> None:
    assert len(kept(store=STORES, message=("Go", "Ask"))) == 6


def test_each_other_value_runs_with_one_rotated_value_and_all_rotated_values_run() -> None:
    cases = kept("store", "message", module=MODULES, store=STORES, message=("Go", "Ask"))
    assert [case["module"] for case in cases] == list(MODULES)
    assert {case["store"] for case in cases} == set(STORES)
    assert sorted(case["message"] for case in cases) == ["Ask", "Ask", "Go", "Go"]


def test_attribute_of_a_parameter_rotates() -> None:
    cases = kept("case.api", case=[Case(*each) for each in product(MODULES, APIS)], number=range(3))
    assert len(cases) == len({(case["case"].module, case["number"]) for case in cases}) == 12
    assert sorted(case["case"].api for case in cases) == ["chat"] * 6 + ["responses"] * 6


def test_parameter_that_rotates_with_its_attribute_has_one_case() -> None:
    assert len(kept("case", "case.api", case=[Case(*each) for each in product(MODULES, APIS)])) == 1


def test_functions_with_one_case_use_all_values_together() -> None:
    chosen = [kept("store", function=f"test_{number}", store=STORES) for number in range(20)]
    assert all(len(cases) == 1 for cases in chosen)
    assert {case["store"] for (case,) in chosen} == set(STORES)


def test_some_values_are_spread_from_the_first_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.examples.runs_all", lambda: False)
    assert some(range(1, 22), 5) == [1, 6, 11, 16, 21]
    assert list(some(range(3), 5)) == [0, 1, 2]
    monkeypatch.setattr("tests.examples.runs_all", lambda: True)
    assert some(range(1, 22), 5) == range(1, 22)


def test_run_is_exhaustive_with_the_profile_all_only(request: pytest.FixtureRequest) -> None:
    assert runs_all() is (request.config.getoption("--hypothesis-profile") == "all")


def test_run_makes_the_same_choices_each_time_except_with_the_profile_all(request: pytest.FixtureRequest) -> None:
    assert settings().derandomize is not runs_all()
    seed = request.config.getoption("--hypothesis-seed")
    assert random.random() == random.Random(f"{seed} {request.node.nodeid}").random()
