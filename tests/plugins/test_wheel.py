"""The example plugins, built and installed as a package of another author, in a server that knows nothing of them."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.process.server_process import environment
from tests.serving import PATIENCE, until, within

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "plugins"
AGENT = """
from parrot_sdk import Bird

bird = Bird({"weather": "It is sunny."})
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel of the examples installed in it."""
    folder = tmp_path_factory.mktemp("author")
    source, installed = folder / "source", folder / "site"
    shutil.copytree(EXAMPLES, source, ignore=shutil.ignore_patterns("__pycache__"))
    offline = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    _pip("wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    _pip("install", *offline, "--no-compile", "--target", str(installed), str(wheel))
    shutil.rmtree(source)
    (installed / "aviary.py").write_text(AGENT)
    return installed


def _pip(*arguments: str) -> None:
    _run(None, *arguments, module="pip")


def _run(site: Path | None, *arguments: str | Path, module: str = "turnwire", folder: Path | None = None) -> str:
    """Run a module with the folder on its path, and return its output."""
    variables = {name: value for name, value in environment().items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=folder,
        env=variables if site is None else {**variables, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
async def server(site: Path, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run `turnwire serve` with the folder on its path, and return a client of it."""
    variables = environment(extension_mailbox_folder=str(tmp_path), lines_tools="true")
    command = ("serve", "--port", "0", "--data", tmp_path / "data", "--agent", "aviary:bird")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwire", *map(str, command), "--allow-extension", "mailbox"),
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(site)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output, url = b"", None
    try:
        while url is None and (line := await within(process.stdout.readline())):
            output += line
            url = re.search(rb"listening on (http://[^ \n]+)", line)
        assert url is not None, output.decode()
        async with httpx.AsyncClient(base_url=url[1].decode(), timeout=PATIENCE) as client:
            yield client
    finally:
        process.kill()
        await process.communicate()


async def test_wire_agent_service_and_channel_of_an_installed_wheel_work(
    server: httpx.AsyncClient, site: Path, tmp_path: Path
) -> None:
    sent = await server.post("/lines", json={"message": "What is the weather?"})
    assert sent.headers["content-type"] == "application/x-ndjson"
    *lines, done = sent.text.splitlines()
    assert lines == [
        '{"tool": "lookup", "args": {"topic": "weather"}}',
        *('{"text": "It "}', '{"text": "is "}', '{"text": "sunny. "}'),
    ]
    assert '"done": "completed"' in done
    again = await server.get(f"{sent.headers['location']}&tools=false")
    assert again.text.splitlines() == [*lines[1:], done]

    await server.put("/v1/notes/milk", json={"text": "Buy milk"})
    shown = await within(asyncio.to_thread(_run, site, "notes", "--data", tmp_path / "data"))
    assert shown == "milk: Buy milk\n"

    message, answer = tmp_path / "in" / "ada" / "1.txt", tmp_path / "out" / "ada" / "1.txt"
    message.parent.mkdir(parents=True)
    (tmp_path / "1.part").write_text("Good morning")
    os.replace(tmp_path / "1.part", message)
    await until(answer.is_file)
    assert answer.read_text() == "Good morning "
    assert not message.exists()


def test_examples_of_tests_pass_with_the_wheel(site: Path, tmp_path: Path) -> None:
    tests = shutil.copytree(EXAMPLES / "tests", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ("--disable-plugin-autoload", "-p", "turnwire.testing.plugin")
    _run(site, "-q", *plugins, tests, module="pytest", folder=tmp_path)


@pytest.mark.parametrize(("package", "limit"), [("lines", 100), ("parrot", 60), ("mailbox", 60)])
def test_example_is_short(package: str, limit: int) -> None:
    files = (EXAMPLES / f"turnwire_{package}").glob("*.py")
    assert 0 < sum(len(file.read_text().splitlines()) for file in files) <= limit
