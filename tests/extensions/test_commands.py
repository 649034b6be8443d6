"""`turnwire extensions`, as a user runs it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.extensions.harness import BASE, write_extension
from tests.process.server_process import served
from tests.serving import saying
from turnwire import Settings, Turnwire
from turnwire.cli.main import app

run = CliRunner().invoke


def test_list_shows_all_extensions_without_running_code(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "trap", "raise AssertionError('it was run')", description="A trap.")
    write_extension(tmp_path / "x", "keyed", secrets=[{"env": "NO_SUCH_KEY", "description": "Ask Ann."}])
    write_extension(tmp_path / "x", "broken", api="8")
    output = run(app, ["extensions", "list", "--extensions", str(tmp_path / "x")]).output
    assert "trap 1  folder  discovered\n    A trap." in output
    assert "keyed 1  folder  unconfigured\n    NO_SUCH_KEY is not set\n    → set NO_SUCH_KEY. Ask Ann." in output
    assert "broken ?  folder  failed" in output
    assert "telegram" in output


def test_check_imports_extensions_and_reports_problems(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "good", BASE + "class Main(Base):\n    def get_tools(self): return []")
    write_extension(tmp_path / "x", "bad", "import no_such_module_anywhere")
    folder = ["--extensions", str(tmp_path / "x")]
    good = run(app, ["extensions", "check", "good", *folder])
    assert good.exit_code == 0
    assert "✓ good 1  folder  loaded\n    provides tools" in good.output
    bad = run(app, ["extensions", "check", "bad", *folder])
    assert bad.exit_code == 1
    assert "→ install 'no_such_module_anywhere' where Turnwire is installed" in bad.output
    nobody = run(app, ["extensions", "check", "nobody", *folder])
    assert nobody.exit_code == 1
    assert "there is no extension nobody; choose from" in nobody.output


def test_check_creates_no_extension(tmp_path: Path) -> None:
    trap = "class Main(Base):\n    def __init__(self): raise AssertionError('it was made')"
    write_extension(tmp_path / "x", "trap", BASE + trap)
    assert run(app, ["extensions", "check", "trap", "--extensions", str(tmp_path / "x")]).exit_code == 0


async def test_new_writes_a_working_extension(tmp_path: Path) -> None:
    made = await asyncio.to_thread(run, app, ["extensions", "new", "my_channel", "--in", str(tmp_path)])
    assert made.exit_code == 0, made.output
    files = sorted(path.name for path in (tmp_path / "my_channel").iterdir())
    assert files == ["main.py", "manifest.yaml", "test_my_channel.py"]
    checked = await asyncio.to_thread(run, app, ["extensions", "check", "my_channel", "--extensions", str(tmp_path)])
    assert "✓ my_channel 0.1.0  folder  loaded" in checked.output
    assert "provides channel, streaming_channel" in checked.output
    turnwire = Turnwire(
        saying("hello ", "you"), store="memory", settings=Settings(data=tmp_path / "d"), extensions=[tmp_path]
    )
    async with turnwire.lifespan():
        assert turnwire.extensions is not None
        hosted = turnwire.extensions.hosts["my_channel"]
        assert (hosted.state, hosted.notes) == ("running", [])
        extension: object = hosted.extension
        assert await extension.receive("hi", "ann") == "hello you"  # type: ignore[attr-defined]


@pytest.mark.process
def test_generated_test_of_a_new_extension_passes(tmp_path: Path) -> None:
    assert run(app, ["extensions", "new", "my_channel", "--in", str(tmp_path)]).exit_code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONWARNINGS": ""}
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_new_writes_to_the_current_folder_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(app, ["extensions", "new", "mine"]).exit_code == 0
    assert yaml.safe_load((tmp_path / "mine" / "manifest.yaml").read_text())["id"] == "mine"
    # Nothing loads it unasked.
    assert "mine" not in run(app, ["extensions", "list"]).output
    assert "mine 0.1.0  folder  discovered" in run(app, ["extensions", "list", "--extensions", "mine"]).output
    again = run(app, ["extensions", "new", "mine"])
    assert again.exit_code == 1
    assert "exists already" in again.output


@pytest.mark.parametrize("name", ["My-Channel", "../up", "1st", ""])
def test_new_with_an_invalid_id_is_refused(name: str, tmp_path: Path) -> None:
    refused = run(app, ["extensions", "new", name, "--in", str(tmp_path)])
    assert refused.exit_code == 1
    assert "is not a valid id" in refused.output
    assert not [path for path in tmp_path.iterdir() if path.name != "config"]


@pytest.mark.process
async def test_serve_runs_the_extensions_of_its_folders(tmp_path: Path) -> None:
    agent = (
        BASE
        + """
class Main(Base):
    def get_agents(self):
        async def parrot(turn):
            yield turn.message
        return {"parrot": parrot}
"""
    )
    write_extension(tmp_path / "x", "birds", agent)
    write_extension(tmp_path / "x", "broken", "import no_such_module_anywhere")
    async with served(tmp_path / "data", "--extensions", tmp_path / "x", cwd=tmp_path) as server:
        answer = await server.http.post("/chat", json={"message": "polly", "agent": "parrot"})
        assert answer.json()["content"] == "polly"
