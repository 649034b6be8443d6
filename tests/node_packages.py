"""npm packages for the tests: installed once, beside their package-lock.json, exactly as it says, and built once.

`python -m tests.node_packages` installs and builds all of them; `scripts/test` starts it beside the first tests.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / "clients"
FOLDERS = (ROOT / "tests" / "clients", *(CLIENTS / name for name in ("js", "react", "obsidian", "web")))
_OLDEST_NODE = 20
_PATIENCE = 600


def node_with(folder: Path) -> str:
    """Return the path of Node, after installing the packages of a folder. Fail with a hint if there is none."""
    node, npm, version = _programs()
    _make_once(folder / "node_modules", [folder / "package-lock.json"], lambda: _install(npm, folder), version)
    return node


def built(name: str) -> str:
    """Return the path of Node, after building a package of `clients`, `js` or `react`, which also checks its types."""
    folder = CLIENTS / name
    commands = [["build.mjs"]]
    if name == "react":
        built("js")  # The hooks are built with the client.
        # Their test page and their examples are not part of the package.
        commands.append(["node_modules/typescript/bin/tsc", "--noEmit"])
    node = node_with(folder)
    files = [folder / name for name in ("build.mjs", "package.json", "tsconfig.json")]
    parts = [each / part for each in (CLIENTS / "js", folder) for part in ("src", "test", "examples")]
    files += [path for part in parts for path in part.rglob("*.ts*")]

    def build() -> None:
        for command in commands:
            ended = subprocess.run([node, *command], cwd=folder, capture_output=True, text=True, timeout=_PATIENCE)
            assert ended.returncode == 0, ended.stdout + ended.stderr

    _make_once(folder / "dist", files, build)
    return node


def _make_once(output: Path, sources: Sequence[Path], make: Callable[[], None], version: str = "") -> None:
    """Call `make` unless the folder `output` is of these sources already. Other processes wait until it is."""
    stamp = output.parent / "node_modules" / f".turnwire-{output.name}"
    digest = hashlib.sha256(version.encode() + b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    with (output.parent / "package.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists() or not stamp.exists() or stamp.read_text() != digest:
            make()
            stamp.write_text(digest)


@cache
def _programs() -> tuple[str, str, str]:
    """Return the paths of Node and npm, and the version of Node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail("this test runs JavaScript: install Node 20 or newer with npm, from https://nodejs.org")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < _OLDEST_NODE:
        pytest.fail(f"this test needs Node {_OLDEST_NODE} or newer, from https://nodejs.org; here is {version}")
    return node, npm, version


def _install(npm: str, folder: Path) -> None:
    print(f"Installing npm packages in {folder.name} …", file=sys.__stderr__, flush=True)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_PATIENCE)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"npm could not install the packages of {folder.name}:\n{error.stderr}")
    except subprocess.TimeoutExpired:
        pytest.fail(f"npm did not install the packages of {folder.name} in {_PATIENCE} seconds; check the network")


if __name__ == "__main__":
    # The tests that need them report every problem.
    with suppress(pytest.fail.Exception, AssertionError):
        for each in FOLDERS:
            node_with(each)
        built("react")
