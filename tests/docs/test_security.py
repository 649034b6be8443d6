"""SECURITY.md names a test for every attack class, and every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
ROW = re.compile(r"^\| (?!class|---)([^|]+) \|[^|]*\| ([^|]*) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_attack_class_names_tests_and_all_of_them_exist() -> None:
    rows = {match[1].strip(): NAMED.findall(match[2]) for match in ROW.finditer(PAGE.partition("## Attack classes")[2])}
    assert len(rows) >= 20
    assert [name for name, named in rows.items() if not named] == []
    missing = [
        f"{file}::{test}"
        for named in rows.values()
        for file, test in named
        if not (ROOT / file).exists() or test not in functions_in(ROOT / file)
    ]
    assert missing == []
