"""Two servers over one database: what one accepts, the other may run, read and stop."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.contracts.stores import shared_databases
from tests.contracts.turns import BOUND, followed, texts
from tests.core.desk import Gate, open_desk
from turnwire.cli import app
from turnwire.core.events import DoneEvent
from turnwire.core.turns import Turn
from turnwire.stores.postgres import PostgresStore


async def test_a_turn_is_stopped_from_the_server_that_does_not_run_it(
    store: PostgresStore, other: PostgresStore
) -> None:
    gate = Gate()

    async def waiting(turn: Turn) -> AsyncIterator[str]:
        yield "before"
        await gate.wait()
        yield "after"

    async with open_desk(store, waiting) as one, open_desk(other, waiting) as two, asyncio.timeout(BOUND):
        turn = await one.start()
        await gate.reached()
        elsewhere = two if one.runner.running_count else one
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


def test_keys_are_made_in_the_database_that_the_environment_names(tmp_path: Path, database_url: str) -> None:
    environment = {"TURNWIRE_DATABASE_URL": database_url}

    def turnwire(*arguments: str) -> str:
        ran = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path)], env=environment)
        assert ran.exit_code == 0, ran.output
        return ran.output

    turnwire("keys", "create", "ann")
    assert "\tann\t" in turnwire("keys", "list")
    assert not (tmp_path / "turnwire.db").exists()


def test_a_server_whose_database_is_not_there_says_so(tmp_path: Path) -> None:
    url = "postgresql://ann:s3cret@127.0.0.1:1/logs"
    ran = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--data", str(tmp_path), "--database-url", url])
    assert ran.exit_code == 1
    assert "logs at 127.0.0.1:1" in ran.output
    assert "s3cret" not in ran.output
