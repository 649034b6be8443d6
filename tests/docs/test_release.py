"""Tests of `scripts/release`: equal versions, the section of the changelog, and no publishing without the flag."""

import re
import subprocess
from pathlib import Path

import pytest

from scripts.release_facts import changes, project, versions

ROOT = Path(__file__).parents[2]
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-11-16

### Added

- A thing.

## [1.1.0]

- No date.

## [1.0.0] - 2026-01-01

"""


def test_all_packages_state_one_version() -> None:
    stated = versions()
    assert len(stated) >= 4
    assert len(set(stated.values())) == 1, stated


def test_section_of_a_version_is_found() -> None:
    assert changes(CHANGELOG, "1.2.0") == "Turnwire 1.2.0\n\n### Added\n\n- A thing.\n"


@pytest.mark.parametrize("version", ["1.1.0", "1.0.0", "1.3.0", "1.2"])
def test_section_without_date_or_text_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=re.escape(version)):
        changes(CHANGELOG, version)


def test_changelog_has_an_unreleased_section() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def test_links_of_the_clients_start_with_the_repository() -> None:
    home = project()["urls"]["Repository"]
    plugin = (ROOT / "clients" / "obsidian" / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", plugin)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert any(target.startswith(home) for target in targets)


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--nonsense"], ["--publish", "--skip-tests"]], ids=" ".join)
def test_script_refuses_wrong_options_before_it_does_anything(arguments: list[str]) -> None:
    done = subprocess.run([ROOT / "scripts" / "release", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 2)
    assert (done.stdout, done.stderr.startswith("release: ")) == ("", True)


def test_script_publishes_only_after_the_early_exit() -> None:
    prepared, _, published = (ROOT / "scripts" / "release").read_text().partition("if [[ ! $publish ]]; then\n")
    commands = re.compile(r"^\s*(git tag --annotate|git push|.*twine upload|npm publish|docker push)", re.MULTILINE)
    assert commands.findall(prepared) == []
    assert published.index("exit 0") < published.index("git tag --annotate")
