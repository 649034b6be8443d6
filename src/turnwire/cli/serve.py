"""`turnwire serve`."""

import asyncio
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.building import TO_POSTGRES, begin_logging, build, read_given
from turnwire.cli.options import (
    Agents,
    Config,
    DatabaseUrl,
    DataSetting,
    Docs,
    Extensions,
    LogLevel,
    Vault,
    Watch,
    fail,
)

if TYPE_CHECKING:
    from turnwire.cli.supervised import Line

# What ends after the turns: extensions, agents that close something, connections to the database.
_WINDING_UP_SECONDS = 30.0


def serve(
    data: DataSetting = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen on; all but loopback need an API key.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on; 0 picks a free one.", show_default="8420")
    ] = None,
    agent: Agents = None,
    docs: Docs = None,
    watch: Watch = False,
    vault: Vault = None,
    extensions: Extensions = None,
    workers: Annotated[int, typer.Option(help="How many processes; more than one needs PostgreSQL.")] = 1,
    log_level: LogLevel = "warning",
) -> None:
    """Run agents and serve their turns. With none, answers come from documents: yours, or Turnwire's own."""
    from turnwire.cli.supervised import Line

    settings = read_given(config, data=data, database_url=database_url, host=host, port=port, vault=vault)
    begin_logging(settings, log_level)
    line = Line.inherited()
    if line is None:
        _check(settings, workers)
        place = settings.data if settings.database_url is None else "PostgreSQL"
        typer.echo(f"Starting Turnwire with the logs in {place} …")
        if workers > 1:
            sys.exit(_supervise(settings, workers))
    # Of several processes the first one runs them: two would answer everything twice.
    wanted = extensions or [] if line is None or line.orders.number == 1 else None
    token = line.orders.control_token if line is not None else None
    turnwire = build(settings, agent or [], docs or [], watch, wanted, token)
    if line is None:
        _serve_alone(turnwire)
    else:
        _serve_with_others(turnwire, line)


def _check(settings: Any, workers: int) -> None:
    if workers < 1:
        fail("--workers: there must be one at least")
    if workers > 1 and settings.database_url is None:
        fail(
            "the SQLite store is written by one process; --workers above 1 needs PostgreSQL, "
            f"which any number can share.\n{TO_POSTGRES}"
        )
    if workers > 1 and sys.platform == "win32":
        fail("--workers above 1 needs a system that hands sockets on to processes; start several servers instead")
    if not _is_loopback(settings.host) and not _has_keys(settings):
        fail(
            f"listening on {settings.host} would let the network in, and there is no API key yet.\n"
            f"Make one first: {_how_to_make_a_key(settings)}"
        )


def _how_to_make_a_key(settings: Any) -> str:
    if settings.database_url is None:
        return f"turnwire keys create NAME --data {settings.data}"
    return "turnwire keys create NAME, with TURNWIRE_DATABASE_URL in the environment"


def _serve_alone(turnwire: Any) -> None:
    from turnwire.cli import running
    from turnwire.cli.listening import WebServer, listen, url_of
    from turnwire.cli.welcome import show, welcome

    settings = turnwire.settings
    listening = listen(settings.host, settings.port)
    settings.port = listening.getsockname()[1]
    url = url_of(settings.host, listening)

    def started() -> None:
        running.announce(settings.data, url, turnwire.control_token)
        show(welcome(turnwire, url))

    server = WebServer(turnwire, started, lambda: running.withdraw(settings.data))
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def _serve_with_others(turnwire: Any, line: "Line") -> None:
    from turnwire.cli.listening import WebServer, url_of
    from turnwire.cli.welcome import welcome

    settings = turnwire.settings
    settings.port = line.listening.getsockname()[1]

    def started() -> None:
        line.follow(turnwire, server.refuse_connections)
        line.say_ready(welcome(turnwire, url_of(settings.host, line.listening)))

    server = WebServer(turnwire, started, lambda: None)
    server.run(sockets=[line.listening])
    if not server.started:
        sys.exit(1)


def _supervise(settings: Any, workers: int) -> int:
    from turnwire.cli import running
    from turnwire.cli.listening import listen, url_of
    from turnwire.cli.supervising import Supervisor
    from turnwire.cli.welcome import show
    from turnwire.server.auth import new_control_token

    listening = listen(settings.host, settings.port)
    url, token = url_of(settings.host, listening), new_control_token()

    def announce(lines: Sequence[str]) -> None:
        running.announce(settings.data, url, token)
        show([*lines, f"[dim]In {workers} processes; `kill -HUP` replaces them one by one.[/]\n"])

    patience = settings.drain_delay + settings.shutdown_grace + _WINDING_UP_SECONDS
    try:
        return asyncio.run(Supervisor(listening, workers, token, patience, announce).run())
    finally:
        running.withdraw(settings.data)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _has_keys(settings: Any) -> bool:
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite import SqliteArchive

    if settings.database_url is not None:
        return asyncio.run(_has_keys_in_database(settings))
    try:
        archive = SqliteArchive(settings.data)
    except StoreUnusableError:
        return False
    try:
        return archive.has_keys()
    finally:
        archive.close()


async def _has_keys_in_database(settings: Any) -> bool:
    from turnwire.assembly import build_store
    from turnwire.core.errors import StoreError

    try:
        store = build_store("postgres", settings)
        await store.open()
        try:
            return bool(await store.list_keys())
        finally:
            await store.close()
    except StoreError as error:
        fail(str(error))
