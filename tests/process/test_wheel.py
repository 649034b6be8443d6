"""Tests of the wheel and the source archive: both include the web page, built without Node."""

import asyncio
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx

from tests.process.server_process import environment
from tests.serving import PATIENCE
from turnwire.server.pages import FOLDER

ROOT = Path(__file__).parents[2]
PAGE = "turnwire/server/page"
NOT_IN_A_CLONE = (".git", ".venv", "node_modules", "__pycache__", ".*_cache", ".hypothesis", "*.db", "dist", "build")


def build(folder: Path, target: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    variables = {**environment(), "PATH": ""}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, env=variables)
    assert done.returncode == 0, done.stderr
    (package,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return package


async def test_wheel_and_source_archive_serve_the_page_without_node(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE))
    wheel = await asyncio.to_thread(build, clone, "wheel", tmp_path / "wheels")
    archive = await asyncio.to_thread(build, clone, "sdist", tmp_path / "archives")
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    base = f"{names[0].partition('/')[0]}/src/{PAGE}/"
    assert files <= {name.removeprefix(base) for name in names if name.startswith(base)}
    assert not [name for name in names if "node_modules" in name]
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(installed)
    # As in a fresh environment: this Turnwire first on the path, and no other programs.
    variables = {**environment(), "PYTHONPATH": str(installed), "PATH": ""}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnwire", "serve", "--port", "0", "--data", str(tmp_path / "data")),
        cwd=tmp_path,
        env=variables,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(3 * PATIENCE):
            assert process.stdout is not None
            output = ""
            while (url := re.search(r"http://127\.0\.0\.1:\d+", output)) is None:
                output += (await process.stdout.readline()).decode()
            async with httpx.AsyncClient(base_url=url[0], trust_env=False, timeout=PATIENCE) as client:
                page = await client.get("/", headers={"Accept": "text/html"})
                assert page.headers["content-type"].startswith("text/html")
                for address in re.findall(r'"(/assets/[^"]+)"', page.text):
                    name = address.removeprefix("/").partition("?")[0]
                    assert (await client.get(address)).content == (installed / PAGE / name).read_bytes()
                assert (await client.get("/turns/some")).headers["content-type"].startswith("text/html")
    finally:
        process.kill()
        await process.wait()
