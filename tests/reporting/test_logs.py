"""Tests of the server's log: turn ids on every line, no content by default, secrets masked."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.server_process import served
from tests.serving import quick_settings
from turnwire import Turn, Turnwire
from turnwire.core.log.follow import follow
from turnwire.core.run.runner import TurnRequest
from turnwire.reporting.logs import JsonFormatter, TextFormatter

Lines = Callable[[], list[dict[str, Any]]]


class ListHandler(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


async def failing(turn: Turn) -> Any:
    logging.getLogger("my.agent").warning("logged by the agent")
    await asyncio.to_thread(logging.getLogger("my.agent").warning, "logged in a thread")
    yield "an answer"
    raise ValueError(f"cannot work with {turn.message!r}")


async def log_of_a_turn(tmp_path: Path, *, content: bool) -> tuple[list[dict[str, Any]], str, str]:
    handler = ListHandler(JsonFormatter(content=content))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.getLogger("turnwire.turns").setLevel(logging.INFO)
    turnwire = Turnwire(
        failing, store="memory", settings=quick_settings(tmp_path, content_in=["log"] if content else [])
    )
    try:
        async with turnwire.lifespan():
            record = (await turnwire.runner.start(TurnRequest(principal="ann", message="my private words"))).record
            async for _ in follow(turnwire.store, record.id):
                pass
    finally:
        root.removeHandler(handler)
        logging.getLogger("turnwire.turns").setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in handler.lines]
    return lines, record.id, record.session_id


async def test_lines_of_a_turn_have_its_id_and_no_content(tmp_path: Path) -> None:
    lines, turn_id, session_id = await log_of_a_turn(tmp_path, content=False)
    by_logger = {line["logger"]: line for line in lines}
    assert {line["message"] for line in lines if line["logger"] == "my.agent"} == {
        "logged by the agent",
        "logged in a thread",
    }
    assert set(by_logger) == {"my.agent", "turnwire.runner", "turnwire.turns"}
    assert {(line["turn_id"], line["session_id"]) for line in lines} == {(turn_id, session_id)}
    assert all({"time", "level", "message"} <= set(line) for line in lines)
    failure = by_logger["turnwire.runner"]["exception"]
    assert failure["type"] == "builtins.ValueError"
    assert failure["at"][-1].endswith(" failing")
    ended = by_logger["turnwire.turns"]
    assert (ended["outcome"], ended["reason"], ended["agent"]) == ("failed", "agent_failed", "default")
    assert "private" not in json.dumps(lines)


async def test_log_content_adds_message_and_answer(tmp_path: Path) -> None:
    lines, _, _ = await log_of_a_turn(tmp_path, content=True)
    by_logger = {line["logger"]: line for line in lines}
    assert by_logger["turnwire.turns"]["asked"] == "my private words"
    assert by_logger["turnwire.turns"]["answer"] == "an answer"
    assert by_logger["turnwire.runner"]["exception"]["message"] == "cannot work with 'my private words'"


SECRETS = (
    "tw_523fca97dd69_Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4",
    "twc_Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4",
    "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    "sk-proj-0123456789abcdef",
)


@pytest.mark.parametrize("formatter", [JsonFormatter(content=True), TextFormatter()], ids=["json", "text"])
def test_secrets_are_masked_in_every_format(formatter: logging.Formatter) -> None:
    logger, handler = logging.Logger("secrets"), ListHandler(formatter)
    logger.addHandler(handler)
    for secret in SECRETS:
        logger.error("the key %s does not fit", secret)
        try:
            raise ValueError(f"Authorization: Bearer {secret}")
        except ValueError:
            logger.exception("refused")
    logger.error("postgresql://user:hunter2@db.example/turnwire")
    written = "\n".join(handler.lines)
    assert not any(secret in written for secret in (*SECRETS, "hunter2"))
    assert "db.example" in written
    assert len(handler.lines) == 9


@pytest.mark.process
async def test_json_log_has_only_json_lines_and_no_query_strings(tmp_path: Path) -> None:
    data = tmp_path / "data"
    starting = served(data, "--log-level", "info", agents=("slow",), log_format="json", access_log="true")
    async with starting as server:
        answer = await server.http.post("/chat", json={"message": "3"}, params={"token": "in-the-address"})
        broken = await server.http.post("/chat", json={"message": "not a number"})
        server.process.terminate()
        written = (await server.errors).decode()
    lines = [json.loads(line) for line in written.splitlines()]
    requests = [line for line in lines if line["logger"] == "uvicorn.access"]
    assert [(line["method"], line["path"], line["status"]) for line in requests] == [
        ("POST", "/chat", 200),
        ("POST", "/chat", 500),
    ]
    turns = {line["turn_id"]: line["outcome"] for line in lines if line["logger"] == "turnwire.turns"}
    assert turns == {answer.json()["turn_id"]: "completed", broken.json()["error"]["turn_id"]: "failed"}
    assert "in-the-address" not in written
    assert "not a number" not in written
