"""Tests that every Python block in the README and the docs is an example file that runs.

Examples with a model use a scripted one, which calls the offered tool, if any, and then says good morning.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.claude_program import claude_program
from tests.examples import runs_all
from tests.scripted_model import (
    Request,
    ScriptedModel,
    calls,
    conversation_of,
    model_server,
    says,
    use_scripted_model,
)
from tests.serving import PATIENCE, error_of, quick_settings, saying, serving, within
from turnwire import Turnwire
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

__all__ = ["model_server"]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
TESTS = sorted((ROOT / "docs" / "examples" / "tests").glob("*.py"))
"""The examples of tests of agents."""
PLUGINS = sorted((ROOT / "docs" / "examples" / "plugins").rglob("*.py"))
"""The examples of plugins, which `tests/plugins/test_wheel.py` installs and runs."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SIGNED_IN = {"X-User": "ada", "Cookie": "session=secret-of-ada"}
"""The ways in which the examples know their user."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_python_blocks_equal_example_files() -> None:
    texts = {example.read_text() for example in (*EXAMPLES, *TESTS, *PLUGINS)}
    blocks = [(page, block) for page in PAGES for block in BLOCK.findall(page.read_text())]
    assert [(page.name, block) for page, block in blocks if block not in texts] == []


def test_links_to_files_exist() -> None:
    targets = [
        page.parent / target for page in PAGES for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    ]
    assert [str(target) for target in targets if not target.exists()] == []


def use_tool(request: Request) -> Answer:
    has_result = any(kind == "result" for kind, _ in conversation_of(request.body))
    # Claude Code puts the name of the tool's server before its own.
    tool = "mcp__tools__weather" if request.path.endswith("/messages") else "weather"
    return says("Good morning, it is sunny.") if has_result else calls((tool, {"city": "Oslo"}))


SCRIPTS = (
    *("a2a_client", "acme_sdk", "acp_client", "adapter", "adapter_journal", "check_log"),
    *("python_client", "python_client_async", "python_client_resume", "python_client_tools"),
)
"""Examples without an agent, and parts of one."""
CLAUDE = "claude_weather"
"""It needs Claude Code, which only `scripts/test --all` installs."""
ANSWERING = [
    pytest.param(example, marks=[pytest.mark.process] if example.stem in ("with_mcp", CLAUDE) else [])
    for example in EXAMPLES
    if example.stem not in SCRIPTS and (runs_all() or example.stem != CLAUDE)
]


def load(example: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{example.stem}", example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use_claude_code(monkeypatch: pytest.MonkeyPatch, server: ScriptedModel, folder: Path) -> None:
    """Let the SDK find its program, and the program the scripted model."""
    (folder / "claude").symlink_to(claude_program())
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")


@pytest.mark.parametrize("example", ANSWERING, ids=lambda example: example.stem)
async def test_example_answers_a_message(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_server: ScriptedModel
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # Some examples name no data folder.
    use_scripted_model(monkeypatch, model_server)
    model_server.plan(use_tool, use_tool)
    if example.stem == CLAUDE:
        use_claude_code(monkeypatch, model_server, tmp_path)
    module = load(example)
    mounted = hasattr(module, "turnwire")
    turnwire = module.turnwire if mounted else module.app.lifespan
    async with serving(turnwire, module.app, path="/agent" if mounted else "") as server:
        answer = await server.http.post("chat", json={"message": "good morning"}, headers=SIGNED_IN)
    assert answer.status_code == 200
    assert answer.json()["outcome"] == "completed"
    assert answer.json()["content"]
    assert answer.json()["tools_used"] == (["weather"] if model_server.requests else ANY)


@pytest.mark.process
def test_examples_of_tests_pass_without_a_key(tmp_path: Path) -> None:
    folder = shutil.copytree(TESTS[0].parent, tmp_path / "tests")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTEST_"))}
    # As in a project that knows of no other plugin, with no settings of ours.
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:langsmith_plugin", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=10 * PATIENCE)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


async def test_clients_in_python_get_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_server: ScriptedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model_server.keeps_alive = False
    model_server.plan(calls(("weather", {"city": "Oslo", "days": 5})), says("Sunny all week."))
    folder = ROOT / "docs" / "examples"
    async with serving(load(folder / "approvals.py").app.lifespan) as server:
        ask = load(folder / "python_client_async.py").ask
        assert await within(ask("Oslo, five days", url=server.url)) == "Sunny all week."
        assert "completed ['weather']" in capsys.readouterr().out
    async with serving(Turnwire(saying("Good ", "morning."), settings=quick_settings(tmp_path))) as server:
        ask = load(folder / "python_client.py").ask
        assert await within(asyncio.to_thread(ask, "Hello", server.url)) == "Good morning."
        assert capsys.readouterr().out == "Good morning."
        assert await within(asyncio.to_thread(ask, " ", server.url)) is None
        assert capsys.readouterr().out.startswith("422 invalid_request")
        turn_id, log = await server.start("Hello"), tmp_path / "log"
        frames = await server.whole(turn_id)
        copy_log = load(folder / "python_client_resume.py").copy_log
        log.write_text("\n".join(f"{frame.id} {frame.data}" for frame in frames[:3]))
        await within(asyncio.to_thread(copy_log, turn_id, log, server.url))
        assert log.read_text().splitlines() == [f"{frame.id} {frame.data}" for frame in frames]


async def test_client_in_python_runs_its_tools_and_answers_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_server: ScriptedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", model_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model_server.keeps_alive = False
    wanted = [("weather", {"city": "Oslo", "days": 5}), ("locate", {"exact": True})]
    model_server.plan(calls(*wanted, ids=["c1", "c2"]), says("Sunny all week."))
    folder = ROOT / "docs" / "examples"
    answer = load(folder / "python_client_tools.py").answer
    async with serving(load(folder / "asking.py").app.lifespan) as server:
        assert await within(asyncio.to_thread(answer, "Will it rain here?", server.url)) == "Sunny all week."
    assert "Which plan pays for 5 days?" in capsys.readouterr().out
    assert [message["content"] for message in model_server.bodies[1]["messages"] if message["role"] == "tool"] == [
        "Sunny in Oslo for 5 days, paid by the plan plus",
        '{"city":"Oslo","street":"Karl Johans gate"}',
    ]
    async with serving(load(folder / "locating.py").app.lifespan) as server:
        assert await within(asyncio.to_thread(answer, "Where am I?", server.url)) == "You are in Oslo."


async def test_official_client_of_a2a_gets_its_answer(tmp_path: Path) -> None:
    async with serving(Turnwire(saying("Good ", "morning."), settings=quick_settings(tmp_path))) as server:
        ask = load(ROOT / "docs" / "examples" / "a2a_client.py").ask
        assert await within(ask("Hello", server.url)) == "Good morning."


@pytest.mark.process
async def test_official_client_of_acp_gets_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "greeter.py").write_text('async def greet(turn):\n    yield "Good morning."\n')
    monkeypatch.chdir(tmp_path)
    ask = load(ROOT / "docs" / "examples" / "acp_client.py").ask
    assert await within(ask("Hello", "--data", "data", "--agent", "greeter:greet")) == "Good morning."


async def test_downloaded_log_is_checked_against_its_seal(tmp_path: Path) -> None:
    check = load(ROOT / "docs" / "examples" / "check_log.py").check
    key = "k" * 32
    turnwire = Turnwire(saying("Grüße, ", "Ünï."), settings=quick_settings(tmp_path, seal_key=key))
    async with serving(turnwire) as server:
        turn_id = await server.start("Hello")
        await server.ended(turn_id)
        assert error_of(await server.http.get(f"/v1/turns/{turn_id}/seal"), 404)["code"] == "seal_not_found"
        await turnwire.store.maintain(expire_before=0)
        log = (await server.http.get(f"/v1/turns/{turn_id}/log.jsonl")).content
        seal = (await server.http.get(f"/v1/turns/{turn_id}/seal")).json()
    assert check(log, seal, key) is None
    assert check(log, seal) is None
    assert "not signed" in check(log, seal, "another")
    lines = log.splitlines(keepends=True)
    for number in range(len(lines)):
        changed = [*lines[:number], lines[number].replace(b'"type"', b'"typo"'), *lines[number + 1 :]]
        assert f"position {number + 1} was changed" in check(b"".join(changed), seal, key)
        dropped = [*lines[:number], *lines[number + 1 :]]
        assert check(b"".join(dropped), seal, key) is not None
    moved = log.replace(b'"position":3', b'"position":9').replace(b'"position":4', b'"position":3')
    assert "position 3" in check(moved, seal, key)
    assert "signed" in check(log, {**seal, "events": 4}, key)
