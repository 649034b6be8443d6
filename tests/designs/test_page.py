"""The page `docs/designs.md` names code and tests that exist, and every test of the designs."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "designs.md").read_text()


def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_test_of_a_design_is_on_the_page() -> None:
    files = sorted(path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    assert len(files) == 5
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named == set().union(*map(names_of_tests, files))


def test_every_test_of_a_design_names_its_section() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        if path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                assert ast.get_docstring(node), node.name


def test_every_file_on_the_page_exists() -> None:
    for name in re.findall(r"`(tests/[\w/.]+|clients/\w+)/?`", PAGE):
        assert (ROOT / name).exists(), name
    packages = "retrieval|wires|core|server|extensions|channels|agents|models"
    for name in re.findall(rf"`((?:{packages})/[\w/.]+)`", PAGE):
        assert (ROOT / "src" / "turnwire" / name).exists(), name
