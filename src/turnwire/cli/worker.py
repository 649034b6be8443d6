"""`turnwire worker`: a process that runs the turns of other servers and has no HTTP of its own."""

import asyncio
import os
import signal
from types import FrameType
from typing import Any

import typer

from turnwire.cli.options import (
    POSTGRES_HINT,
    Agents,
    Config,
    DatabaseUrl,
    DataSetting,
    Docs,
    Extensions,
    LogLevel,
    Vault,
    Watch,
    build_turnwire,
    configure_logging,
    fail,
    load_settings,
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
    """Run the turns that servers on the same PostgreSQL database accept. It listens on no address."""
    settings = load_settings(config, data=data, database_url=database_url, vault=vault)
    if settings.database_url is None:
        fail(
            "a worker shares its store with servers, and only one process can use the SQLite store.\n"
            f"{POSTGRES_HINT}, the same as the servers'"
        )
    if settings.max_worker_turns == 0:
        fail("max_worker_turns is 0, so this worker would run no turns; set it to 1 or more")
    configure_logging(settings, log_level)
    typer.echo("Starting a Turnwire worker for the logs in PostgreSQL …")
    # No load balancer sends requests here.
    settings.drain_delay = 0
    # Without --extensions it runs none: two processes would answer everything twice.
    turnwire = build_turnwire(settings, agent or [], docs or [], watch, extensions or None)
    asyncio.run(_work(turnwire))


async def _work(turnwire: Any) -> None:
    from turnwire.core.errors import TurnwireError

    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop_requested.is_set():
            os._exit(128 + number)
        stop_requested.set()
        loop.call_soon_threadsafe(_print_shutdown, turnwire)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        await turnwire.open()
    except TurnwireError as error:
        fail(str(error))
    names = ", ".join(turnwire.agents)
    typer.echo(f"Running turns of {names}; up to {turnwire.settings.max_worker_turns:,} at once. Stop: Ctrl+C")
    await stop_requested.wait()
    await turnwire.close()
    if turnwire.runner.has_left_behind:
        # Everything is committed and closed; an agent that ignores cancellation must not keep the process.
        os._exit(0)


def _print_shutdown(turnwire: Any) -> None:
    running = turnwire.runner.running_count
    if running:
        typer.echo(f"Shutting down; {running} turn(s) have {turnwire.settings.shutdown_grace:g} s to finish")
