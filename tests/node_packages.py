"""npm packages for tests that need them: installed once, beside their package-lock.json, exactly as it says."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_OLDEST_NODE = 20
_INSTALL_SECONDS = 240


def node_with(folder: Path) -> str:
    """The program, with the packages of a folder installed in it. Fails if there is none, and says how to get it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail("this test runs JavaScript: install Node 20 or newer with npm, from https://nodejs.org")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < _OLDEST_NODE:
        pytest.fail(f"this test needs Node {_OLDEST_NODE} or newer, from https://nodejs.org; here is {version}")
    lock, stamp = folder / "package-lock.json", folder / "node_modules" / ".turnwire-stamp"
    wanted = hashlib.sha256(lock.read_bytes() + version.encode()).hexdigest()
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # Other workers wait for the one that installs.
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"Installing npm packages in {folder.name} …", file=sys.__stderr__, flush=True)
            _install(npm, folder)
            stamp.write_text(wanted)
    return node


def _install(npm: str, folder: Path) -> None:
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"npm could not install the packages of {folder.name}:\n{error.stderr}")
    except subprocess.TimeoutExpired:
        pytest.fail(f"npm did not install them within {_INSTALL_SECONDS} seconds; is the network there?")


def build(node: str, folder: Path) -> None:
    """Build a package with its `build.mjs`, unless its `dist` is of these sources: another worker may be using it."""
    files = [folder / name for name in ("build.mjs", "package.json", "tsconfig.json")]
    sources = [*files, *(folder / "src").rglob("*.ts*")]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    stamp = folder / "node_modules" / ".turnwire-build-stamp"
    with (folder / "package.json").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / "dist").exists() or not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run([node, "build.mjs"], cwd=folder, check=True, timeout=_INSTALL_SECONDS)
            stamp.write_text(wanted)
