"""Every Python block in the README and the docs is a file that runs."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.serving import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_is_an_example_file(page: Path) -> None:
    texts = {example.read_text() for example in EXAMPLES}
    assert all(block in texts for block in BLOCK.findall(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
async def test_every_example_answers(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{example.stem}", example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    mounted = hasattr(module, "turnwire")
    turnwire = module.turnwire if mounted else module.app.turnwire
    async with serving(turnwire, module.app, path="/agent" if mounted else "") as server:
        answer = await server.http.post("chat", json={"message": "good morning"}, headers={"X-User": "ada"})
    assert answer.status_code == 200
    assert answer.json()["outcome"] == "completed"
    assert answer.json()["content"]
