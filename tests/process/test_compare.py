"""Tests of `turnwire compare` against a model server."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.process.server_process import CommandResult, run
from tests.retrieval.shelf import GREEN, KEY, SHELF, judges, searches
from tests.scripted_model import Request, fails, says, scripted_model
from turnwire.retrieval.comparisons import COMPARISONS_FILE, KeptComparison, keep, read_runs
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.indexer import sync_root
from turnwire.retrieval.service import LIBRARY_FILE
from turnwire.testing.evaluation import TurnFigures
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

WRITTEN = "It is brewed at eighty degrees [1]. See [bold]more[/bold] in [/docs]."
OWN_WORDS = "Eighty degrees [1]."


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name, text in SHELF.items():
        (shelf / name).write_text(text)
    library = SqliteLibrary(tmp_path / "data" / LIBRARY_FILE)
    library.open()
    sync_root(library, shelf, max_bytes=10_000)
    library.close()
    return tmp_path / "data"


def reply(request: Request) -> Answer:
    """Search first, then judge or write, as the request asks."""
    if "response_format" in request.body:
        return judges()
    if "tools" not in request.body:
        return says(WRITTEN)
    if request.body["messages"][-1]["role"] != "tool":
        return searches("green tea")
    return says(OWN_WORDS)


def rows(shown: CommandResult) -> dict[str, tuple[str, str]]:
    """Return the table's cells by the name of the row."""
    lines = [line.strip("│┃ ").replace("┃", "│").split("│") for line in shown.out.splitlines() if line[:1] in "│┃"]
    cells = [[cell.strip() for cell in line] for line in lines]
    table = {name: (left, right) for name, left, right in (line for line in cells if len(line) == 3)}
    assert ["synthesis", "direct"] in cells
    return table


async def test_compare_shows_both_answers_with_times_and_citations(data: Path) -> None:
    async with scripted_model(*[reply] * 12) as model:
        shown = await run("compare", GREEN, "[/tea]", "--data", data, model="small", model_url=model.url, model_key=KEY)
        assert model.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert shown.code == 0, shown.err
    assert "Traceback" not in shown.err
    table = rows(shown)
    assert table["mode"] == ("synthesis", "direct")
    for name in ("first token", "total"):
        assert all(value.endswith(" ms") for value in table[name])
    assert table["sentences cited"] == ("50%", "100%")
    assert table["tokens"][0].endswith(" out")
    # Markup in an answer is shown as text.
    assert table["answer"] == (WRITTEN, OWN_WORDS)
    assert shown.out.count("[/tea]") == 1
    assert KEY not in shown.out + shown.err


async def test_compare_without_a_model_shows_quotations(data: Path) -> None:
    shown = await run("compare", GREEN, "--data", data, "--no-review", "--no-keep")
    assert shown.code == 0
    assert not (data / COMPARISONS_FILE).exists()
    assert "No model is configured (TURNWIRE_MODEL)" in shown.err
    table = rows(shown)
    assert table["mode"] == ("extractive", "extractive")
    assert table["sentences cited"] == ("100%", "100%")
    assert table["tokens"] == ("–", "–")
    assert shown.out.count("eighty degrees") == 2


async def test_compare_with_failing_model_does_not_print_the_key(data: Path) -> None:
    refusal = fails(401, code="invalid_api_key", message=f"Incorrect API key provided: {KEY}.")
    async with scripted_model(*[refusal] * 12) as model:
        failing, unusable = await asyncio.gather(
            run("compare", GREEN, "--data", data, model="small", model_url=model.url, model_key=KEY),
            run("compare", GREEN, "--data", data, model="small", model_url=f"ftp://{KEY}@localhost", model_key=KEY),
        )
    assert failing.code == 0
    assert rows(failing)["mode"] == ("fallback", "fallback")
    assert (unusable.code, unusable.out) == (1, "")
    assert unusable.err.startswith("turnwire: ")
    for shown in (failing, unusable):
        assert KEY not in shown.out + shown.err
        assert "Traceback" not in shown.err


async def test_compare_keeps_its_results_and_shows_them_over_time(data: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    async with scripted_model(*[reply] * 24) as model:
        ask = partial(run, "compare", GREEN, model="<small>", model_url=model.url, model_key=KEY)
        first_shown = await ask("<b>tea</b>", "--data", data)
        again = await ask("--data", data, "--html", page)
    assert (first_shown.code, again.code) == (0, 0), first_shown.err + again.err
    first, second = read_runs(data / COMPARISONS_FILE)
    assert [[each.question for each in run.comparisons] for run in (first, second)] == [[GREEN, "<b>tea</b>"], [GREEN]]
    assert (first.mean("synthesis", "cited"), first.mean("direct", "cited")) == (0.5, 1.0)
    shown = await run("compare", "--data", data)
    lines = [line for line in shown.out.splitlines() if "<small>" in line]
    assert ["synthesis" in line for line in lines] == [True, False, True, False]
    assert "50%" in lines[0]
    written = page.read_text()
    assert written.count("<tr><td>20") == 2
    assert written.count("<circle") == 4 * 4  # Two runs in two modes; the cost is not known.
    assert "&lt;b&gt;tea" in written
    assert "<b>" not in written
    assert KEY not in written


async def test_compare_without_questions_says_what_to_do(data: Path) -> None:
    shown = await run("compare", "--data", data)
    assert (shown.code, shown.out) == (0, "")
    assert "turnwire compare QUESTION" in shown.err


def test_line_that_was_not_written_to_its_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / COMPARISONS_FILE
    figures = TurnFigures(outcome="completed", answer="Hi.", tools=[])
    one = KeptComparison(at=1, turnwire="1", model=None, question="?", review=True, figures={"direct": figures})
    keep(path, one)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:20])
    (run_of_one,) = read_runs(path)
    assert run_of_one.comparisons == [one]
    assert run_of_one.mean("synthesis", "total_ms") is None
