"""Tests that pages can be followed literally: commands have an environment, quoted messages and blocks are real."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
RESEARCH = ROOT / "docs" / "research"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(GUIDES.glob("*.md"))]
SHELL = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
NEEDS_ENVIRONMENT = re.compile(r"^ *(?:\w+=\S+ )*(turnwire|uvicorn|pip) ", re.MULTILINE)
FOREIGN_MESSAGES = {
    *("turnwire: command not found", "uvicorn: command not found"),  # The shell's.
    *(
        "Address already in use",
        "No module named 'langchain'",
        "Missing credentials",
    ),  # The system's, Python's, OpenAI's.
    "no such module: fts5",  # SQLite's.
    "database is locked",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_pages_with_commands_say_how_to_get_them() -> None:
    texts = {name_of(page): page.read_text() for page in PAGES}
    assert [name for name, text in texts.items() if has_commands(text) and not says_how_to_get_them(text)] == []


def has_commands(text: str) -> bool:
    return any(NEEDS_ENVIRONMENT.search(block) for block in SHELL.findall(text))


def says_how_to_get_them(text: str) -> bool:
    return bool(re.search(r"\((?:\S*/)?install\.md", text)) or "source .venv/bin/activate" in text


def test_messages_in_the_troubleshooting_page_are_real() -> None:
    page = (GUIDES / "troubleshooting.md").read_text()
    section = re.search(r"^## It does not start\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section
    headings = [line for line in section[1].splitlines() if line.startswith("### ")]
    messages = {message for heading in headings for message in re.findall(r"`([^`]+)`", heading)} - FOREIGN_MESSAGES
    assert len(messages) >= 5
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    # Names and addresses in a message differ from case to case.
    parts = [part for message in messages for part in re.split(r"0\.0\.0\.0|'my_agent' ", message) if part]
    assert [part for part in parts if part not in sources] == []


def test_codes_in_the_troubleshooting_page_are_documented() -> None:
    page = (GUIDES / "troubleshooting.md").read_text()
    headings = re.findall(r"^### \d{3} (`.*)$", page, re.MULTILINE)
    codes = [code for heading in headings for code in re.findall(r"`(\w+)`", heading)]
    assert len(codes) >= 6
    errors = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert [code for code in codes if f"`{code}`" not in errors] == []


@pytest.mark.parametrize(
    ("guide", "file"),
    [("ai-sdk.md", "load-messages.js"), ("ai-sdk.md", "workflow-options.js"), ("ag-ui.md", "thread-agent.js")],
)
def test_history_in_a_client_s_guide_is_the_tested_file(guide: str, file: str) -> None:
    blocks = re.findall(r"^```js\n(.*?)^```", (GUIDES / guide).read_text(), re.MULTILINE | re.DOTALL)
    assert (ROOT / "docs" / "examples" / file).read_text() in blocks


def test_readme_starts_with_a_sentence_a_picture_and_commands() -> None:
    text = (ROOT / "README.md").read_text()
    order = ["Turnwire runs", "<picture>", "A screenshot of a real run", "scripts/serve", "```python", "scripts/test"]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert pictures
    assert [picture for picture in pictures if not (ROOT / picture).is_file()] == []


def test_tests_that_the_research_pages_name_exist() -> None:
    named = {name for page in RESEARCH.glob("*.md") for name in re.findall(r"`(test_\w+)`", page.read_text())}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_every_numbered_finding_has_a_test() -> None:
    rows = re.findall(r"^\| (\d+) \|.*`test_\w+`", (RESEARCH / "faults.md").read_text(), re.MULTILINE)
    assert rows == [str(number) for number in range(1, 24)]
