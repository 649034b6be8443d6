"""`turnwire worker`: a process that runs turns which servers have accepted."""

import asyncio
import os
import signal
from types import FrameType
from typing import Any

import typer

from turnwire.cli.options import (
    TO_POSTGRES,
    Agents,
    Config,
    DatabaseUrl,
    DataSetting,
    Docs,
    Extensions,
    LogLevel,
    Vault,
    Watch,
    begin_logging,
    build,
    fail,
    read_given,
)


def worker(
    data: DataSetting = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    agent: Agents = None,
    docs: Docs = None,
    watch: Watch = False,
    vault: Vault = None,
    extensions: Extensions = None,
    log_level: LogLevel = "warning",
) -> None:
    """Run turns that servers on the same PostgreSQL database accept, and listen on no address."""
    settings = read_given(config, data=data, database_url=database_url, vault=vault)
    if settings.database_url is None:
        fail(
            f"a worker shares its turns with servers, and the SQLite store is used by one process.\n{TO_POSTGRES}, "
            "the same as the servers'"
        )
    if settings.max_worker_turns == 0:
        fail("max_worker_turns is 0, so this worker would run nothing")
    begin_logging(settings, log_level)
    typer.echo("Starting a Turnwire worker for the logs in PostgreSQL …")
    # No balancer asks for it. Extensions run where they are asked for, and nowhere twice.
    settings.drain_delay = 0
    turnwire = build(settings, agent or [], docs or [], watch, extensions or None)
    asyncio.run(_work(turnwire))


async def _work(turnwire: Any) -> None:
    from turnwire.core.errors import TurnwireError

    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(number: int, frame: FrameType | None) -> None:
        if told_to_stop.is_set():
            os._exit(128 + number)
        told_to_stop.set()
        loop.call_soon_threadsafe(_say_farewell, turnwire)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)
    try:
        await turnwire.open()
    except TurnwireError as error:
        fail(str(error))
    names = ", ".join(turnwire.agents)
    typer.echo(f"Running turns of {names}; up to {turnwire.settings.max_worker_turns:,} at once. Stop: Ctrl+C")
    await told_to_stop.wait()
    await turnwire.close()
    if turnwire.runner.has_left_behind:
        # Everything is committed and closed; an agent that will not stop must not keep the process.
        os._exit(0)


def _say_farewell(turnwire: Any) -> None:
    running = turnwire.runner.running_count
    if running:
        typer.echo(f"Ending; {running} turn(s) have {turnwire.settings.shutdown_grace:g} s to finish")
