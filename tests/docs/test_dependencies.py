"""Tests of `scripts/audit` and its facts: pins with hashes, and licences."""

import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from scripts.dependencies import (
    dependencies,
    is_allowed,
    judge_audit,
    licence_of,
    licence_report,
    read_pins,
    without_hash,
)

ROOT = Path(__file__).parents[2]
REQUIREMENTS = """anyio==4.16.0 \\
    --hash=sha256:59bb03251907983d1603d27c3087ddb1e93299ea2163adcdba37899a4fb12ffb
no-such-package==1.0 ; sys_platform == 'win32' \\
    --hash=sha256:08695f5cb7ed6e0531a20572697297273c47b8cae5a63ffc6d6ed5c201be6e44
msgspec==0.20.0
"""


def test_pins_without_hash_are_found() -> None:
    assert [name for name, _ in read_pins(REQUIREMENTS)] == ["anyio", "no-such-package", "msgspec"]
    assert without_hash(REQUIREMENTS) == ["msgspec"]


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND CNRI-Python", True),
        ("BSD License", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("GPL-3.0-only OR MIT", True),
        ("LGPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GNU Affero General Public License v3", False),
        ("unknown", False),
        ("See LICENSE", False),
    ],
)
def test_licence_is_allowed_only_if_it_is_known_and_permissive(licence: str, allowed: bool) -> None:
    assert is_allowed(licence) is allowed


def test_report_names_what_is_not_allowed_and_what_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.dependencies.licence_of", lambda package: "GPL-3.0-only")
    report = licence_report(dependencies(REQUIREMENTS))
    assert "| anyio | 4.16.0 | GPL-3.0-only **(not allowed)** |" in report
    assert "| no-such-package | 1.0 | not installed here, so not read |" in report


def test_every_direct_dependency_has_an_allowed_licence_and_a_pin() -> None:
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = facts["optional-dependencies"]
    declared = [*facts["dependencies"], *(each for name in extras if name != "dev" for each in extras[name])]
    names = {name_of(each) for each in declared} - {"turnwire"}
    pinned = {name.lower().replace("_", "-") for name, _ in read_pins((ROOT / "constraints.txt").read_text())}
    assert names <= pinned
    refused = {name: licence for name in names if not is_allowed(licence := licence_of(distribution(name)))}
    assert refused == {}


def name_of(requirement: str) -> str:
    """Return the normal form of the name in a requirement."""
    name = requirement.partition(";")[0].partition("[")[0]
    return name.split(">")[0].split("=")[0].split("<")[0].strip().lower().replace("_", "-")


CLEAN = {"name": "anyio", "version": "4.16.0", "vulns": []}
BROKEN = {"name": "h11", "version": "0.14", "vulns": [{"id": "CVE-2025-43859", "fix_versions": ["0.16.0"]}]}
UNKNOWN = {"name": "typer", "skip_reason": "it was not found"}


@pytest.mark.parametrize(
    ("packages", "code"),
    [([CLEAN], 0), ([CLEAN, BROKEN], 1), ([CLEAN, UNKNOWN], 3), ([BROKEN, UNKNOWN], 1), ([], 3)],
    ids=["clean", "broken", "not checked", "broken and not checked", "nothing"],
)
def test_audit_succeeds_only_if_every_package_was_checked(packages: list[dict[str, Any]], code: int) -> None:
    found, lines = judge_audit({"dependencies": packages})
    assert found == code
    assert bool(lines) is bool(code)


@pytest.mark.process
def test_audit_refuses_an_unknown_option() -> None:
    ended = subprocess.run([ROOT / "scripts" / "audit", "--fix"], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 2
    assert "the only option is --offline" in ended.stderr
