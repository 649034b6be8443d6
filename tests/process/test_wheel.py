"""Tests of the packages: the wheel and the source archive work without the repository, Node or a network."""

import asyncio
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import httpx
import pytest
import typer

from tests.process.server_process import environment
from tests.serving import PATIENCE
from turnwire.server.guide.site import Guide
from turnwire.server.pages import FOLDER

ROOT = Path(__file__).parents[2]
PAGE = "turnwire/server/page"
NOT_IN_A_CLONE = (".git", ".venv", "node_modules", "__pycache__", ".*_cache", ".hypothesis", "*.db", "dist", "build")
_BUILD_SECONDS = 120


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    """Run a program without any other program on its PATH; return its output."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        env={**environment(), "PATH": "", **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source archive of a clone, and the wheel that was built from the archive alone."""
    folder = tmp_path_factory.mktemp("packages")
    clone, out = folder / "clone", folder / "dist"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, clone, folder=folder)
    shutil.rmtree(clone)
    return out


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (path,) = packages.glob("*.whl")
    return path


def test_source_archive_has_the_page_and_everything_that_tests_and_scripts_need(packages: Path) -> None:
    (archive,) = packages.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    top = names[0].partition("/")[0]
    files = {name.removeprefix(f"{top}/") for name in names}
    page = {f"src/{PAGE}/{path.relative_to(FOLDER)}" for path in FOLDER.rglob("*") if path.is_file()}
    assert page <= files
    assert {"scripts/serve", "deploy/Dockerfile", "bench/README.md", "tests/conftest.py", "SECURITY.md"} <= files
    assert not [name for name in files if "node_modules" in name]


def test_readme_of_the_package_has_no_relative_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(packed.read(name).decode())
    text = str(metadata.get_payload())
    targets = re.findall(r'(?:\]\(|src="|srcset=")([^)"]+)', text)
    assert len(targets) > 20
    assert [target for target in targets if not re.match(r"https?:|#", target)] == []
    labels = {value.partition(",")[0] for value in metadata.get_all("Project-URL", [])}
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= labels


async def test_wheel_serves_page_guide_and_answers_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    await asyncio.to_thread(venv.create, home, with_pip=True)
    programs = home / "bin"
    await asyncio.to_thread(
        run, programs / "python", "-m", "pip", "install", "--no-index", "--no-deps", wheel, folder=tmp_path
    )
    (packages,) = (home / "lib").glob("python*/site-packages")
    # The dependencies are those of this environment. A .pth file adds their folder and does not read the .pth files in
    # it, so the Turnwire of this repository stays unknown.
    (packages / "dependencies.pth").write_text(f"{Path(typer.__file__).parents[1]}\n")
    where = await asyncio.to_thread(
        run, programs / "python", "-c", "import turnwire; print(turnwire.__file__)", folder=tmp_path, PYTHONPATH=""
    )
    assert Path(where.strip()).is_relative_to(packages)
    installed = Guide(packages / "turnwire" / "documentation")
    assert installed.names == Guide(ROOT).names
    process = await asyncio.create_subprocess_exec(
        *(programs / "turnwire", "serve", "--port", "0", "--data", str(tmp_path / "data")),
        cwd=tmp_path,
        env={**environment(), "PATH": "", "PYTHONPATH": ""},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(3 * PATIENCE):
            assert process.stdout is not None
            output = ""
            while (url := re.search(r"http://127\.0\.0\.1:\d+", output)) is None:
                line = await process.stdout.readline()
                assert line, "the server has ended"
                output += line.decode()
            async with httpx.AsyncClient(base_url=url[0], trust_env=False, timeout=PATIENCE) as client:
                page = await client.get("/", headers={"Accept": "text/html"})
                assert page.headers["content-type"].startswith("text/html")
                for address in re.findall(r'"(/assets/[^"]+)"', page.text):
                    name = address.removeprefix("/").partition("?")[0]
                    assert (await client.get(address)).content == (packages / PAGE / name).read_bytes()
                assert (await client.get("/turns/some")).headers["content-type"].startswith("text/html")
                for name in ("", "concepts.html", "guide.css", "guide.js", "search.json"):
                    assert (await client.get(f"/guide/{name}")).status_code == 200, name
                answer = await client.post("/chat", json={"message": "What is a turn?"})
                assert (answer.status_code, answer.json()["outcome"]) == (200, "completed")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
