"""Tests of `turnwire index` with `--watch`, and of two processes at once."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.process.server_process import run, start
from tests.process.template import CommandProcess
from tests.retrieval.paper import opened
from tests.serving import PATIENCE, within
from turnwire.retrieval.service import LIBRARY_FILE


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"# Tea {number}\n\nIt is hot.")
    return folder


@asynccontextmanager
async def watching(data: Path, *paths: Path) -> AsyncIterator[CommandProcess]:
    """Run the command with --watch, and yield when it watches."""
    process = await start("index", *paths, "--watch", "--data", data, documents_embeddings="off")
    try:
        await read_line(process, "Watching for changes")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_line(process: CommandProcess, part: str) -> str:
    """Return the next line with this part."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while line := await process.stdout.readline():
            if part in line.decode():
                return line.decode()
    assert process.stderr is not None
    raise AssertionError((await process.stderr.read()).decode())


async def test_watch_indexes_changes_and_stops_on_sigint(tmp_path: Path, docs: Path) -> None:
    data = tmp_path / "data"
    async with watching(data, docs) as process:
        # One after the other: what changes together may be noticed together or not. And in one step each.
        (tmp_path / "draft").write_text("# Coffee\n\nIt is hot, too.")
        (tmp_path / "draft").rename(docs / "0.md")
        line = await read_line(process, "1 changed")
        assert line.startswith(f"{docs}: 0 new, 1 changed, 2 unchanged, 0 gone")
        (docs / "2.md").unlink()
        line = await read_line(process, "1 gone")
        assert line.startswith(f"{docs}: 0 new, 0 changed, 2 unchanged, 1 gone")
        process.send_signal(signal.SIGINT)
        out, err = await within(process.communicate())
    assert process.returncode == 0
    assert (
        out.decode().splitlines()[-1]
        == "Stopped. The documents read so far are kept; run the command again for the rest."
    )
    assert err == b""
    assert await asyncio.to_thread(names, data) == ["0.md", "1.md"]


async def test_two_processes_index_the_same_folder_at_once(tmp_path: Path, docs: Path) -> None:
    data = tmp_path / "data"
    for number in range(3, 200):
        (docs / f"{number}.txt").write_text(f"Coffee number {number}. " * 100)
    both = await asyncio.gather(*(run("index", docs, "--data", data, documents_embeddings="off") for _ in range(2)))
    assert [result.code for result in both] == [0, 0], [result.err for result in both]
    assert len(await asyncio.to_thread(names, data)) == 200


def names(data: Path) -> list[str]:
    with opened(data / LIBRARY_FILE) as library:
        return [document.name for document in library.documents(limit=1_000)]
