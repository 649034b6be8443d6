"""House rules for names and docstrings: one name per thing, in words that a Python developer would search for."""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "turnwire"
TESTS = Path(__file__).parent

GERUNDS = {
    "embedding": "the noun for a vector of a text",
    "recording": "the noun for a turn in a file",
    "reporting": "the noun for metrics, traces and webhooks",
    "testing": "the noun for what is needed to test agents, as other frameworks name it",
}
"""Modules and packages whose name ends in -ing and is a noun of the trade, with the reason."""

DIALECT = {"told", "said", "asked", "given", "heard", "anew", "whoever"}
RIDDLES = re.compile(r"(What|Who|Whoever|Whose|That|Those)\b")
SUSPECT = re.compile(rf"(?<![^\W_])({'|'.join(sorted(DIALECT))})(?![^\W_])|[\"'][\s\\]*{RIDDLES.pattern}", re.I)
"""Text without such a word in a name, or such a word after a quote, breaks no rule for names and docstrings."""

NOT_VERBS = {"A", "An", "The", "This", "It", "Its", "One", "All", "After", "If", "When", "Whether", "With"}
NOUNS_AFTER = {"property", "cached_property", "fixture", "tool"}
"""Decorators of functions whose docstring may be a noun phrase, or is written for a model."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    return {path.relative_to(SOURCE): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def trees_of_tests() -> dict[Path, ast.Module]:
    """Return the tests that have a word of `DIALECT` or `RIDDLES` where it might matter; to parse all takes seconds."""
    paths: list[Path] = []
    for folder, folders, files in os.walk(TESTS):
        folders[:] = [name for name in folders if name != "node_modules"]
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    texts = {path.relative_to(TESTS.parent): path.read_text() for path in sorted(paths)}
    return {path: ast.parse(text) for path, text in texts.items() if SUSPECT.search(text)}


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every name that the code defines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def test_module_names_are_nouns() -> None:
    gerunds = {
        part
        for path in trees()
        for part in (*path.parts[:-1], path.stem)
        if re.search(r"[a-z]{2,}ing$", part) and part not in {*GERUNDS, "string"}
    }
    assert gerunds == set()


def test_class_names_are_used_once() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_identifiers_name_the_thing() -> None:
    """A word such as `told` or `asked` says what happened to a value, never what the value is."""
    found = [
        f"{path}:{line} {name}"
        for path, tree in trees().items()
        for line, name in identifiers(tree)
        if DIALECT & set(name.lower().split("_"))
    ]
    assert found == []


def test_identifiers_of_tests_name_the_thing() -> None:
    """The name of a test is a sentence, and may have any word."""
    found = [
        f"{path}:{line} {name}"
        for path, tree in trees_of_tests().items()
        for line, name in identifiers(tree)
        if DIALECT & set(name.lower().split("_")) and not name.startswith("test_")
    ]
    assert found == []


def test_docstrings_name_their_subject() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}"
        for path, tree in [*trees().items(), *trees_of_tests().items()]
        for node in ast.walk(tree)
        if isinstance(node, Documented)
        for text in [ast.get_docstring(node) or ""]
        if RIDDLES.match(text)
    ]
    assert found == []


def test_docstrings_of_functions_start_with_a_verb() -> None:
    """`Return …`, not `Returns …`, `The …` or `Whether …`; a property may be named by a noun phrase."""
    found = [
        f"{path}:{node.lineno} {text.splitlines()[0]}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for text in [ast.get_docstring(node) or ""]
        if text and not node.name.startswith("__") and not decorators(node) & NOUNS_AFTER
        for word in [text.split()[0]]
        if word in NOT_VERBS or re.fullmatch("[A-Z][a-z]*[^s]s", word)
    ]
    assert found == []


def decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    called = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return {ast.unparse(each).rpartition(".")[2] for each in called}
