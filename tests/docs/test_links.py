"""Every relative link in the documentation leads to a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "bench/*.md", "clients/*/README.md", "deploy/*.md")
    for page in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_of_a_page_lead_to_files(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
