"""`turnwire index` in a process of its own, and beside others."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.process.running import run, start
from tests.retrieval.paper import opened
from tests.serving import PATIENCE, within
from turnwire.assembly import LIBRARY_FILE


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"# Tea {number}\n\nIt is hot.")
    return folder


@asynccontextmanager
async def watching(data: Path, *paths: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command with --watch, once it says that it watches."""
    process = await start("index", *paths, "--watch", "--data", data, embeddings="off")
    try:
        await line(process, "Watching for changes")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process, part: str) -> str:
    """The next line that says this."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while read := await process.stdout.readline():
            if part in read.decode():
                return read.decode()
    assert process.stderr is not None
    raise AssertionError((await process.stderr.read()).decode())


async def test_watching_picks_up_a_change_and_stops_when_told(tmp_path: Path, docs: Path) -> None:
    data = tmp_path / "data"
    async with watching(data, docs) as process:
        (docs / "0.md").write_text("# Coffee\n\nIt is hot, too.")
        (docs / "2.md").unlink()
        seen = await line(process, "1 gone")
        assert seen.startswith(f"{docs}: 0 new, 1 changed, 1 unchanged, 1 gone")
        process.send_signal(signal.SIGINT)
        out, err = await within(process.communicate())
    assert process.returncode == 0
    assert out.decode().splitlines()[-1] == "Stopped. What was read stays; the rest is read the next time."
    assert err == b""
    assert await asyncio.to_thread(names, data) == ["0.md", "1.md"]


async def test_two_may_index_the_same_folder_at_once(tmp_path: Path, docs: Path) -> None:
    data = tmp_path / "data"
    for number in range(3, 200):
        (docs / f"{number}.txt").write_text(f"Coffee number {number}. " * 100)
    both = await asyncio.gather(*(run("index", docs, "--data", data, embeddings="off") for _ in range(2)))
    assert [one.code for one in both] == [0, 0], [one.err for one in both]
    assert len(await asyncio.to_thread(names, data)) == 200


def names(data: Path) -> list[str]:
    with opened(data / LIBRARY_FILE) as library:
        return [document.name for document in library.documents(limit=1_000)]
