"""How much of a large set of cases a run checks.

`scripts/test` checks a part, always the same one; `scripts/test --all` checks everything, and generates other examples
each time. The Hypothesis profile says which of them runs: `turnwire` or `all`, and `fast` for `scripts/test --fast`.
There are three kinds of large sets:

- examples that are generated: `examples(80)`
- values that a test loops over: `some(positions, 8)`
- cases of a test that pytest makes from parameters: those that differ only in the parameters of
  `@pytest.mark.rotated("backend", "case.api")` take turns, so that one of them runs
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")
_NORMAL = 30
_ALL = 200

# A loaded machine is slow, not wrong.
settings.register_profile(
    "turnwire", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=_NORMAL
)
settings.register_profile("fast", settings.get_profile("turnwire"), max_examples=_NORMAL // 5)
settings.register_profile("all", settings.get_profile("turnwire"), derandomize=False, max_examples=_ALL)
settings.load_profile("turnwire")


def runs_all() -> bool:
    """Return True with `scripts/test --all`. The answer is final when the modules of tests are imported."""
    return settings.get_current_profile_name() == "all"


def runs_fast() -> bool:
    """Return True with `scripts/test --fast`. The answer is final when the modules of tests are imported."""
    return settings.get_current_profile_name() == "fast"


def examples(number: int) -> int:
    """Return the number of generated examples for a test that needs `number` in a normal run."""
    return max(1, number * settings().max_examples // _NORMAL)


def some(values: Sequence[T], number: int) -> Sequence[T]:
    """Return `number` of the values, evenly spread, with the first and the last one."""
    if runs_all() or number >= len(values):
        return values
    return [values[round(index * (len(values) - 1) / (number - 1))] for index in range(number)]


def without_rotated(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items without the cases that only `--all` runs."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("rotated") and hasattr(item, "callspec"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {item for name, cases in functions.items() for item in _chosen(name, cases)}
    left_out = {item for cases in functions.values() for item in cases} - chosen
    return [item for item in items if item not in left_out]


def _chosen(function: str, cases: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield one of the cases that take turns: the one whose values the function has used least.

    Functions begin at different values, so that those with few cases use all values together.
    """
    turns: dict[str, list[pytest.Item]] = {}
    for case in cases:
        turns.setdefault(_fixed(case), []).append(case)
    used: Counter[str] = Counter()
    for group in turns.values():
        first = crc32(function.encode()) % len(group)
        case = min(group[first:] + group[:first], key=lambda case: sum(used[value] for value in _rotated(case)))
        used.update(_rotated(case))
        yield case


def _names(case: Any) -> set[str]:
    """Return what rotates; a `case` that does, does so with its `case.api`."""
    names = {name for marker in case.iter_markers("rotated") for name in marker.args}
    return {name for name in names if name.partition(".")[0] not in names - {name}}


def _fixed(case: Any) -> str:
    """Return the values of the parameters that do not rotate; a `case` of which `case.api` rotates lacks its `api`."""
    values = dict(case.callspec.params)
    for name in _names(case):
        parameter, _, attribute = name.partition(".")
        values[parameter] = replace(values[parameter], **{attribute: None}) if attribute else None
    return repr(values)  # Not all values can be hashed.


def _rotated(case: Any) -> Iterator[str]:
    """Yield the names and values of the parameters that rotate."""
    for name in _names(case):
        parameter, _, attribute = name.partition(".")
        value = case.callspec.params[parameter]
        yield f"{name}={getattr(value, attribute) if attribute else value!r}"
