"""Two servers on one database: a turn that one accepts can be run, read and cancelled by the other."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.contracts.stores import shared_databases
from tests.contracts.turns import BOUND, followed, texts
from tests.core.desk import Gate, open_desk
from turnwire.cli.main import app
from turnwire.core.log.events import DoneEvent
from turnwire.core.log.turns import Turn
from turnwire.stores.postgres import PostgresStore


async def test_turn_is_cancelled_by_a_server_that_does_not_run_it(store: PostgresStore, other: PostgresStore) -> None:
    gate = Gate()

    async def waiting(turn: Turn) -> AsyncIterator[str]:
        yield "before"
        await gate.wait()
        yield "after"

    async with open_desk(store, waiting) as one, open_desk(other, waiting) as two, asyncio.timeout(BOUND):
        turn = await one.start()
        await gate.reached()
        elsewhere = two if len(one.runner.worker.running) else one
        await elsewhere.cancel(turn)
        for reader in (store, other):
            log = await followed(reader, turn.id)
            assert texts(log) == ["before"]
            assert isinstance(end := log[-1].event, DoneEvent)
            assert end.outcome == "cancelled"


@pytest.fixture
def database_url() -> Iterator[str]:
    databases = shared_databases()
    name = databases.take()
    yield databases.server.url(name)
    databases.give_back(name)


def test_keys_command_uses_the_database_of_the_environment(tmp_path: Path, database_url: str) -> None:
    environment = {"TURNWIRE_DATABASE_URL": database_url}

    def turnwire(*arguments: str) -> str:
        ran = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path)], env=environment)
        assert ran.exit_code == 0, ran.output
        return ran.output

    turnwire("keys", "create", "ann")
    assert "\tann\t" in turnwire("keys", "list")
    assert not (tmp_path / "turnwire.db").exists()


def test_serve_without_a_reachable_database_fails_with_its_location(tmp_path: Path) -> None:
    url = "postgresql://ann:s3cret@127.0.0.1:1/logs"
    ran = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--data", str(tmp_path), "--database-url", url])
    assert ran.exit_code == 1
    assert "logs at 127.0.0.1:1" in ran.output
    assert "s3cret" not in ran.output
