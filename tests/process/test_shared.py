"""Tests of several servers on one PostgreSQL database: what one of them keeps, all have, also after it has died."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.extensions.harness import BASE, write_extension
from tests.faults.channel_campaign import run_channel_campaign
from tests.process.server_process import ServerProcess, run, served
from tests.process.shared_database import temporary_database
from tests.serving import PATIENCE, within
from turnwire.channels.telegram.records import Records
from turnwire.extensions.delivery import Delivery, DeliveryRecords
from turnwire.extensions.tables import TABLES, ExtensionTables
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.index.library import NewDocument
from turnwire.retrieval.index.postgres import PostgresLibrary
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.service import LIBRARY_FILE
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.postgres.shared_database import SharedDatabase
from turnwire.stores.sqlite import SqliteStore

pytestmark = pytest.mark.postgres

TREASURE = "# Diary\n\nThe old oak hides a treasure of Spanish silver."
QUESTION = "What does the old oak hide?"
MARKED = (
    BASE
    + """
import os

def mark(word):
    with open(os.environ["TURNWIRE_EXTENSION_MARKED_FILE"], "a") as file:
        file.write(f"{word} {os.getpid()}\\\\n")

async def parrot(turn):
    yield f"{turn.message} {os.getpid()}"

class Main(Base):
    async def start(self):
        mark("start")
    async def stop(self):
        mark("stop")
    async def run_background(self):
        await asyncio.Event().wait()
    def get_agents(self):
        return {"parrot": parrot}
""".replace("\\\\n", "\\n")
)


class Pair(NamedTuple):
    one: ServerProcess
    other: ServerProcess
    url: str


@pytest.fixture
async def documents(tmp_path: Path) -> AsyncIterator[Pair]:
    """Yield two servers that answer from documents, each with a data folder of its own."""
    folders = [tmp_path / name / "data" for name in ("one", "other")]
    for folder in folders:
        folder.mkdir(parents=True)
    with temporary_database() as url:
        async with (
            served(folders[0], agents=(), database_url=url) as one,
            served(folders[1], agents=(), database_url=url) as other,
        ):
            yield Pair(one, other, url)


async def test_document_uploaded_at_one_server_is_cited_at_the_other_and_outlives_it(documents: Pair) -> None:
    one, other, _ = documents
    uploaded = await one.http.post("/v1/documents", files={"file": ("diary.md", TREASURE)})
    assert uploaded.status_code == 201, uploaded.text
    document_id = uploaded.json()["id"]
    for is_killed in (False, True):
        if is_killed:
            await one.kill()
        answer = (await other.http.post("/chat", json={"message": QUESTION})).json()
        assert "a treasure of Spanish silver" in answer["content"]
        listed = (await other.http.get(f"/v1/documents/{document_id}")).json()
        assert listed["name"] == "diary.md"
    assert (await other.http.delete(f"/v1/documents/{document_id}")).status_code == 204


async def test_commands_read_the_database_of_the_servers(documents: Pair, tmp_path: Path) -> None:
    one, other, url = documents
    database, nothing = ("--database-url", url), ("--data", tmp_path / "nothing")
    turn_id = (await one.http.post("/chat", json={"message": "What is a turn?"})).json()["turn_id"]
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "oak.md").write_text(TREASURE)
    index = await run("index", notes, *database, *nothing)
    assert (index.code, "1 new" in index.out) == (0, True), index.err
    assert "treasure" in (await other.http.post("/chat", json={"message": QUESTION})).json()["content"]
    turns, tail, inspect, top, doctor = await asyncio.gather(
        run("turns", "-n", "2", *database, *nothing),
        run("tail", turn_id[-8:], *database, *nothing),
        run("inspect", turn_id, "--json", *database, *nothing),
        run("top", "--once", *database, *nothing),
        run("doctor", *database, *nothing),
    )
    assert [line.split("\t")[1] for line in turns.out.splitlines()] == ["completed", "completed"], turns.err
    assert turn_id in turns.out
    kinds = [json.loads(line)["type"] for line in tail.out.splitlines()]
    assert (kinds[0], kinds[-1]) == ("session", "done")
    timeline = json.loads(inspect.out)
    assert (timeline["turn_id"], timeline["outcome"]) == (turn_id, "completed")
    assert [line.split("\t")[0] for line in top.out.splitlines()] == ["worker", "worker"]
    assert doctor.code == 0, doctor.out
    assert "answers in" in doctor.out
    assert "2 process(es)" in doctor.out
    forgotten = await run("index", "--forget", notes, *database, *nothing)
    assert "1 documents removed" in forgotten.out


async def test_move_takes_uploads_and_records_of_channels_along(tmp_path: Path) -> None:
    data = tmp_path / "data"
    library = SqliteLibrary(data / LIBRARY_FILE)
    await asyncio.to_thread(library.open)
    content = TREASURE.encode()
    uploaded = NewDocument("diary.md", "markdown", content, parse("diary.md", content), owner="local")
    await asyncio.to_thread(library.put, [uploaded])
    found = await asyncio.to_thread(library.search, QUESTION, owner="local")
    await asyncio.to_thread(library.close)
    store = SqliteStore(data)
    await store.open()
    await store.create_tables(TABLES)
    records = Records(ExtensionTables(store))
    await records.open()
    await records.set_note("paired", "[7]")
    deliveries = DeliveryRecords(ExtensionTables(store), 0)
    await deliveries.add(Delivery("post:ann:1", "post", "ann", "p", text="Hello"))
    await store.close()
    with temporary_database() as url:
        moved = [await run("move", "--data", data, "--database-url", url) for _ in range(2)]
        assert [result.code for result in moved] == [0, 0], moved
        assert "Moved 3 records of channels." in moved[0].out
        assert "Moved 1 records of documents." in moved[0].out
        assert "records of channels" not in moved[1].out
        with closing(SharedDatabase(url)) as database:
            await asyncio.to_thread(database.open)
            shared = PostgresLibrary(database)
            (there,) = await asyncio.to_thread(shared.search, QUESTION, owner="local")
            assert there.chunk_id == found[0].chunk_id
            assert await asyncio.to_thread(shared.document, uploaded.record.id, owner="local") == uploaded.record
        store = PostgresStore(url)
        await store.open()
        await store.create_tables(TABLES)
        assert await Records(ExtensionTables(store)).note("paired") == "[7]"
        (delivery,) = await DeliveryRecords(ExtensionTables(store), 0).undelivered()
        assert (delivery.key, delivery.text) == ("post:ann:1", "Hello")
        await store.close()


@pytest.mark.parametrize("command", ["turns", "tail", "inspect", "top", "doctor", "index"])
async def test_command_without_a_database_says_why(command: str, tmp_path: Path) -> None:
    url = f"postgresql://nobody@/nothing?host={tmp_path}"
    result = await run(command, "--database-url", url, "--data", tmp_path)
    assert result.code == 1
    assert "Traceback" not in result.err
    assert "cannot be reached" in result.err + result.out


async def test_login_at_one_server_is_valid_at_the_other(tmp_path: Path) -> None:
    folders = [tmp_path / name / "data" for name in ("one", "other")]
    for folder in folders:
        folder.mkdir(parents=True)
    with temporary_database() as url:
        key = (await run("keys", "create", "anna", "--data", folders[0], database_url=url)).out.strip()
        async with (
            served(folders[0], agents=("telling",), database_url=url) as one,
            served(folders[1], agents=("telling",), database_url=url) as other,
        ):
            login = await one.http.post("/login", json={"key": key}, headers={"Origin": one.url})
            assert login.status_code < 300, login.text
            # As behind a proxy, which both are reached through.
            address = {"Host": one.url.removeprefix("http://")}
            cookie = {"Cookie": login.headers["set-cookie"].partition(";")[0]}
            assert (await other.http.get("/v1/me", headers=address | cookie)).json()["principal"] == "anna"
            assert (await other.http.get("/v1/me", headers=address)).json()["principal"] is None
    assert not any((folder / "login_secret").exists() for folder in folders)


async def test_extension_runs_in_one_process_and_moves_when_it_ends_or_dies(tmp_path: Path) -> None:
    marks, extensions = tmp_path / "marks", tmp_path / "extensions"
    write_extension(extensions, "marked", MARKED)

    def marked() -> list[tuple[str, int]]:
        lines = marks.read_text().split("\n")[:-1] if marks.exists() else []
        return [(word, int(pid)) for word, _, pid in (line.partition(" ") for line in lines)]

    async def until_marked(count: int) -> list[tuple[str, int]]:
        async with asyncio.timeout(PATIENCE):
            while len(marked()) < count:  # noqa: ASYNC110 - other processes write the file
                await asyncio.sleep(0.05)
        return marked()

    folders = [tmp_path / str(number) / "data" for number in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
    with temporary_database() as url:

        def started(folder: Path) -> AbstractAsyncContextManager[ServerProcess]:
            return served(
                folder,
                "--extensions",
                extensions,
                agents=("telling",),
                database_url=url,
                lease="5",
                extension_marked_file=str(marks),
                extension_console_enabled="false",
            )

        async with started(folders[0]) as first, started(folders[1]) as second, started(folders[2]) as third:
            servers = {server.process.pid: server for server in (first, second, third)}
            ((word, pid),) = await until_marked(1)
            assert word == "start"
            # Its agent is everywhere.
            for server in servers.values():
                answer = (await server.http.post("/chat", json={"message": "Hello", "agent": "parrot"})).json()
                assert answer["content"].startswith("Hello "), answer
            servers[pid].process.send_signal(signal.SIGTERM)
            # The next one starts it after the first has stopped it.
            stopped, (word, heir) = (await until_marked(3))[1:]
            assert (stopped, word) == (("stop", pid), "start")
            await within(servers.pop(pid).process.wait())
            await servers.pop(heir).kill()
            (word, last) = (await until_marked(4))[3]
            assert (word, last in servers) == ("start", True)
            assert len(marked()) == 4


@pytest.mark.timeout(600)
async def test_telegram_answers_arrive_once_although_their_server_is_killed(tmp_path: Path) -> None:
    verdict = await run_channel_campaign(kills=3, seed=7, servers=2, folder=tmp_path, report=lambda _: None)
    assert verdict.broken == [], "\n".join(verdict.broken)
    assert (verdict.kills, verdict.answers) == (3, 6)


@pytest.mark.timeout(600)
async def test_telegram_answers_stay_whole_although_their_server_was_paused(tmp_path: Path) -> None:
    verdict = await run_channel_campaign(
        kills=0, pauses=2, seed=3, servers=2, folder=tmp_path, report=lambda _: None, people=3
    )
    assert verdict.broken == [], "\n".join(verdict.broken)
    assert verdict.answers == 12
