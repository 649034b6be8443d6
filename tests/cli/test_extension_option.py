"""Tests of `turnwire serve --allow-extension`."""

from pathlib import Path

import pytest

from tests.extensions.harness import BASE, write_extension
from tests.process.server_process import served

pytestmark = pytest.mark.process


def _marking(mark: Path) -> str:
    """Return the code of an extension that makes a file when it starts."""
    start = f"    async def start(self): open({str(mark)!r}, 'w').close()"
    return f"{BASE}\nclass Main(Base):\n{start}\n"


async def test_extension_of_the_own_folder_runs_if_the_command_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    marks = {name: tmp_path / f"{name}.mark" for name in ("chosen", "stray")}
    for name, mark in marks.items():
        write_extension(tmp_path / "config" / "turnwire" / "extensions", name, _marking(mark))
    async with served(tmp_path / "data", "--allow-extension", "chosen"):
        assert {name: mark.exists() for name, mark in marks.items()} == {"chosen": True, "stray": False}
