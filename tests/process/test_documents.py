"""Tests of `turnwire serve --docs`: answers, a killed server, and a stop while it indexes."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.process.server_process import ServerProcess, served
from tests.retrieval.shelf import GREEN, SHELF
from tests.serving import PATIENCE, within
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.service import LIBRARY_FILE

MANY = 3_000


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name, text in SHELF.items():
        (folder / name).write_text(text)
    return folder


async def listed(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """Return all documents by name, once they are indexed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            page = (await server.http.get("/v1/documents", params={"limit": 200})).json()
            if not page["reading"]["under_way"]:
                return {document["name"]: document for document in page["documents"]}


async def test_question_streams_search_answer_and_sources(tmp_path: Path, shelf: Path) -> None:
    async with served(tmp_path / "data", "--docs", shelf, agents=()) as server:
        path = "/v1/rag/sessions/hello/messages/stream"
        body = (await server.http.post(path, json={"message": GREEN})).content
    lines, separator, rest = body.partition(b"\x1d")
    assert separator
    events = [line.partition(b",")[0] for line in lines.splitlines() if b'"status"' not in line]
    assert events == [b'{"event":"search"', b'{"event":"search"', b'{"event":"review"']
    answer, separator, trailer = rest.partition(b"\x1e")
    assert separator
    assert b"eighty degrees" in answer
    assert answer.rstrip().endswith(b"]")
    assert b'"supporting_quote":"Green tea is brewed at eighty degrees' in trailer
    assert b'"outcome":"completed"' in trailer


async def test_killed_server_keeps_its_documents_and_reads_only_new_ones(tmp_path: Path, shelf: Path) -> None:
    data = tmp_path / "data"
    async with served(data, "--docs", shelf, agents=()) as server:
        uploaded = await server.http.post("/v1/documents", files={"file": ("diary.md", "The oak hides a treasure.")})
        assert uploaded.status_code == 201
        before = await listed(server)
        assert set(before) == {*SHELF, "diary.md"}
        await server.kill()
    (shelf / "mill.md").write_text("# Mill\n\nThe mill grinds on Mondays.\n")
    # The library remembers its folders.
    async with served(data, agents=()) as server:
        after = await listed(server)
        mill = after.pop("mill.md")
        assert after == before
        assert mill["indexed_at"] > max(document["indexed_at"] for document in before.values())


async def test_server_that_is_indexing_stops_in_time(tmp_path: Path) -> None:
    data, many = tmp_path / "data", tmp_path / "many"
    many.mkdir()
    for number in range(MANY):
        (many / f"{number:04}.md").write_text(f"# Note {number}\n\n" + "Some words about tea and ferries. " * 30)
    async with served(data, "--docs", many, "--log-level", "error", agents=(), shutdown_grace="1") as server:
        async with asyncio.timeout(PATIENCE):
            while not (reading := (await server.http.get("/v1/documents")).json()["reading"])["done"]:
                pass
        assert reading["under_way"]
        assert reading["total"] == MANY
        server.process.send_signal(signal.SIGTERM)
        await within(server.process.wait())
        assert server.process.returncode in (0, -signal.SIGTERM)
        assert await within(server.errors) == b""
    # Indexing stopped early, and the library is sound.
    library = SqliteLibrary(data / LIBRARY_FILE)
    library.open()
    documents, passages = library.count()
    library.close()
    assert documents <= passages
    assert documents < MANY
