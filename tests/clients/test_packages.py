"""Tests of the npm packages as they are published: built, complete, licensed, and without anything else."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.node_packages import CLIENTS, built

# The packages may have to be installed first.
pytestmark = pytest.mark.timeout(420)

LOCKS = sorted([*CLIENTS.glob("*/package-lock.json"), Path(__file__).parent / "package-lock.json"])


@pytest.mark.parametrize("name", ["js", "react"])
def test_package_is_ready_to_publish(name: str) -> None:
    folder = CLIENTS / name
    manifest = json.loads((folder / "package.json").read_text())
    for field in ("description", "keywords", "homepage", "bugs", "repository", "license", "types", "exports"):
        assert manifest[field], field
    command = [shutil.which("npm") or "npm", "pack", "--dry-run", "--json", "--ignore-scripts"]
    built(name)
    packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    (package,) = json.loads(packed.stdout)
    files = {file["path"] for file in package["files"]}
    assert {"LICENSE", "README.md", "package.json", "dist/index.js", "dist/index.d.ts"} <= files
    assert [path for path in files if "/" in path and not path.endswith(("dist/index.js", ".d.ts"))] == []
    # A relative link leads nowhere on the page of a registry.
    assert "](../" not in (folder / "README.md").read_text()
    assert (folder / "LICENSE").read_bytes() == (CLIENTS.parent / "LICENSE").read_bytes()


def test_readme_of_the_hooks_shows_the_example_that_is_compiled() -> None:
    (block,) = re.findall(r"^```tsx\n(.*?)^```", (CLIENTS / "react" / "README.md").read_text(), re.M | re.S)
    assert block == (CLIENTS / "react" / "examples" / "chat.tsx").read_text()


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.parent.name)
def test_lock_file_names_no_registry(path: Path) -> None:
    packages = json.loads(path.read_text())["packages"].values()
    assert [package["resolved"] for package in packages if "://" in package.get("resolved", "")] == []
