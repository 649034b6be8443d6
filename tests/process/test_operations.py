"""Tests of `top`, `inspect` and `backup` while a server runs."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.process.server_process import run, served
from tests.serving import PATIENCE
from turnwire.core.log.codec import LoggedEvent
from turnwire.stores.sqlite import SqliteArchive

EXTENSION_FILE = Path("extensions", "mine", "notes.txt")


def logs(folder: Path) -> dict[str, list[LoggedEvent]]:
    """Return every log in a data folder, by turn id."""
    archive = SqliteArchive(folder)
    try:
        turns = [record.id for record in archive.newest_turns(1_000)]
        return {turn_id: asyncio.run(archive.read(turn_id, 0, 100_000)) for turn_id in turns}
    finally:
        archive.close()


async def test_top_and_inspect_show_running_turns_from_folder_and_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data, agents=("slow", "silent")) as server:
        ended = (await server.http.post("/chat", json={"message": "20"})).json()["turn_id"]
        async with server.ask("go on", agent="silent") as stream:
            await stream.until("token")
        top, live = await asyncio.gather(run("top", "--data", data), run("inspect", "--data", data))
        of_folder, of_server, drawn = await asyncio.gather(
            run("inspect", ended, "--data", data, "--json"),
            run("inspect", ended[-7:], "--url", server.url, "--json"),
            run("inspect", ended, "--data", data, "--svg", tmp_path / "a.svg", "--html", tmp_path / "a.html"),
        )
    kinds = [line.split("\t")[0] for line in top.out.splitlines()]
    assert kinds == ["worker", "turn"]
    assert f"{stream.turn_id}\trunning\tlocal\tsilent\t3" in top.out
    timeline: dict[str, Any] = json.loads(of_folder.out)
    assert timeline == json.loads(of_server.out)
    assert (timeline["outcome"], timeline["tokens"]["count"], timeline["turn_id"]) == ("completed", 20, ended)
    assert "running" in live.out  # The newest turn.
    assert "\x1b" not in live.out
    assert drawn.out == ""
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert "<svg" in (tmp_path / "a.html").read_text()


async def test_backup_during_turns_is_a_data_folder_with_the_same_logs(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    file = data / EXTENSION_FILE
    file.parent.mkdir(parents=True)
    file.write_text("kept by an extension")
    async with served(data, agents=("slow", "gushing", "silent")) as server:
        unfinished = await server.start("never", agent="silent")
        await server.http.post("/chat", json={"message": "200"})
        contexts = [server.ask("400", agent="gushing") for _ in range(4)]
        streams = [await context.__aenter__() for context in contexts]
        for stream in streams:
            await stream.until("token")
        first = await run("backup", copy, "--data", data)
        second = await run("backup", copy, "--data", data)
        for context in contexts:
            await context.__aexit__(None, None, None)
        for stream in streams:
            assert (await server.whole(stream.turn_id))[-1].type == "done"
    assert first.code == 0, first.err
    assert "Copied 6 turns" in first.out
    assert (second.code, "nothing is overwritten" in second.err) == (1, True)
    assert not {"server.json", "turnwire.lock", "ballast"} & set(os.listdir(copy))
    assert (copy / EXTENSION_FILE).read_text() == "kept by an extension"
    of_copy, of_data = await asyncio.to_thread(logs, copy), await asyncio.to_thread(logs, data)
    assert set(of_copy) == set(of_data)
    for turn_id, events in of_copy.items():
        assert events == of_data[turn_id][: len(events)]
        assert len(events) >= 3
    assert not of_copy[unfinished][-1].is_last
    async with served(copy, agents=("slow", "gushing")) as server:
        # Turns that ran during the copy are ended by the first server that opens it.
        assert (await server.whole(unfinished))[-1].event["outcome"] == "interrupted"
        for turn_id, events in of_copy.items():
            frames = await server.whole(turn_id)
            assert frames[-1].event["outcome"] in ("completed", "interrupted")
            assert [json.loads(logged.body) for logged in events] == [frame.event for frame in frames[: len(events)]]


async def test_backup_of_empty_folder_or_postgresql_is_refused(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        nothing, elsewhere = await asyncio.gather(
            run("backup", tmp_path / "copy", "--data", tmp_path / "nothing"),
            run("backup", tmp_path / "copy", database_url="postgresql://user:hunter2@db/turnwire"),
        )
    assert (nothing.code, elsewhere.code) == (1, 1)
    assert "there is no such file" in nothing.err
    assert 'pg_dump --format=custom --file=turnwire.dump "$TURNWIRE_DATABASE_URL"' in elsewhere.err
    assert "hunter2" not in elsewhere.err
    assert not (tmp_path / "copy").exists()
