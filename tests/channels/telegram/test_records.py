"""The records file: files of earlier versions open and lose nothing, files of later ones are refused."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.channels.telegram.world import ADA, World
from turnwire.channels.telegram.records import Records
from turnwire.core.errors import StoreUnusableError

VERSION_0 = """
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE inbox (
    update_id INTEGER PRIMARY KEY, body BLOB NOT NULL, done INTEGER NOT NULL DEFAULT 0, at REAL NOT NULL);
CREATE TABLE answers (
    answer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, state TEXT NOT NULL, text TEXT, stopped INTEGER NOT NULL,
    reply_to INTEGER, buttons TEXT, at REAL NOT NULL);
CREATE TABLE parts (
    answer_id TEXT NOT NULL, number INTEGER NOT NULL, message_id INTEGER, sent_after INTEGER, shown TEXT,
    PRIMARY KEY (answer_id, number));
CREATE TABLE asks (answer_id TEXT PRIMARY KEY, body BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE floods (chat_id INTEGER PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE paired (user_id INTEGER PRIMARY KEY, name TEXT NOT NULL, at REAL NOT NULL);
"""


def update(update_id: int, text: str) -> dict[str, Any]:
    message = {"message_id": update_id, "chat": {"id": ADA}, "from": {"id": ADA, "first_name": "Ada"}, "text": text}
    return {"update_id": update_id, "message": message}


def write_version_0(folder: Path) -> None:
    folder.mkdir(parents=True)
    now = time.time()
    database = sqlite3.connect(folder / "telegram.db")
    with database:
        database.executescript(VERSION_0)
        inbox = [(11, "", 1), (12, json.dumps(update(12, "left")), 0), (13, json.dumps(update(13, "/help")), 0)]
        database.executemany(f"INSERT INTO inbox VALUES (?, ?, ?, {now})", inbox)
        database.execute(f"INSERT INTO answers VALUES ('7:10', '7', 'final', 'Unposted.', 0, NULL, NULL, {now})")
        database.execute(f"INSERT INTO paired VALUES ({ADA}, 'Ada', {now})")
        database.execute("""INSERT INTO notes VALUES ('bot', '{"id": 4242, "username": "TurnBot"}')""")
    database.close()


async def test_updates_in_the_inbox_of_version_0_are_handled_once(world: World) -> None:
    write_version_0(world.folder)
    await world.start(allowed_users=[])
    await world.api.until(lambda: len(world.api.texts(ADA)) == 3)
    await world.delivered()
    texts = world.api.texts(ADA)
    assert {"Unposted.", "You said: left"} <= set(texts)
    assert any("/stop stops the answer" in text for text in texts)
    assert world.kernel.received == [("left", "7", "telegram:7", "7:12")]
    await world.crash()
    await world.start()
    world.api.again(update(11, "handled by version 0"))
    world.api.again(update(12, "left"))
    world.api.says(ADA, "new")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 4)
    await world.delivered()
    assert world.api.texts(ADA)[3:] == ["You said: new"]
    assert [text for text, *_ in world.kernel.received] == ["new"]


async def test_inbox_of_version_0_is_dropped_after_it_was_handled(world: World) -> None:
    write_version_0(world.folder)
    await world.start(allowed_users=[])
    await world.api.until(lambda: len(world.api.texts(ADA)) == 3)
    await world.delivered()
    await world.crash()
    database = sqlite3.connect(world.folder / "telegram.db")
    names = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"answers", "parts", "updates", "paired"} <= names
    assert "inbox" not in names
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    assert [row[0] for row in database.execute("SELECT update_id FROM updates ORDER BY update_id")] == [11, 12, 13]
    database.close()


async def test_records_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "telegram.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    records = Records(tmp_path / "telegram.db")
    with pytest.raises(StoreUnusableError, match="newer Turnwire"):
        await records.paired()
    await records.close()
