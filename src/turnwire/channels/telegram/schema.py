"""The tables of the records, and their rows."""

import sqlite3
import time
from typing import Any, Literal

import msgspec

SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS inbox (
    update_id INTEGER PRIMARY KEY, body BLOB NOT NULL, done INTEGER NOT NULL DEFAULT 0, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    answer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, state TEXT NOT NULL, text TEXT, stopped INTEGER NOT NULL,
    reply_to INTEGER, buttons TEXT, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    answer_id TEXT NOT NULL, number INTEGER NOT NULL, message_id INTEGER, sent_after INTEGER, shown TEXT,
    PRIMARY KEY (answer_id, number));
CREATE TABLE IF NOT EXISTS asks (answer_id TEXT PRIMARY KEY, body BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS floods (chat_id INTEGER PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS paired (user_id INTEGER PRIMARY KEY, name TEXT NOT NULL, at REAL NOT NULL);
"""

AnswerState = Literal["live", "final", "delivered", "refused"]


class Answer(msgspec.Struct, frozen=True):
    answer_id: str
    user_id: str
    state: AnswerState
    text: str | None = None
    stopped: bool = False
    reply_to: int | None = None
    buttons: str | None = None
    """What can be pressed below it, as Telegram's JSON."""


class Part(msgspec.Struct, frozen=True):
    """One message of an answer. Without a `message_id`, it was being sent when `sent_after` was the newest known.

    `shown` stands for what it says, so that the same is not said again.
    """

    message_id: int | None = None
    sent_after: int | None = None
    shown: str | None = None


_COLUMNS = "answer_id, user_id, state, text, stopped, reply_to, buttons"
SLOTS = "?, ?, ?, ?, ?, ?, ?, ?"


def answer_row(answer: Answer) -> tuple[Any, ...]:
    return (*msgspec.structs.astuple(answer), time.time())


def find_answers(database: sqlite3.Connection, where: str, value: str) -> list[Answer]:
    rows = database.execute(f"SELECT {_COLUMNS} FROM answers WHERE {where} ORDER BY at", (value,)).fetchall()
    return [Answer(*row[:4], stopped=bool(row[4]), reply_to=row[5], buttons=row[6]) for row in rows]
