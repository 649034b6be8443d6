"""`turnwire serve`."""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from turnwire.cli.supervisor import Line

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
    from turnwire.cli.supervisor import Line

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
    from turnwire.cli import client
    from turnwire.cli.web_server import WebServer, listen, url_of

    settings = turnwire.settings
    listening = listen(settings.host, settings.port)
    settings.port = listening.getsockname()[1]
    url = url_of(settings.host, listening)

    def started() -> None:
        client.announce(settings.data, url, turnwire.control_token)
        show(welcome(turnwire, url))

    server = WebServer(turnwire, started, lambda: client.withdraw(settings.data))
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def _serve_with_others(turnwire: Any, line: "Line") -> None:
    from turnwire.cli.web_server import WebServer, url_of

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
    from turnwire.cli import client
    from turnwire.cli.supervisor import Supervisor
    from turnwire.cli.web_server import listen, url_of
    from turnwire.server.auth import new_control_token

    listening = listen(settings.host, settings.port)
    url, token = url_of(settings.host, listening), new_control_token()

    def announce(lines: Sequence[str]) -> None:
        client.announce(settings.data, url, token)
        show([*lines, f"[dim]In {workers} processes; `kill -HUP` replaces them one by one.[/]\n"])

    patience = settings.drain_delay + settings.shutdown_grace + _WINDING_UP_SECONDS
    try:
        return asyncio.run(Supervisor(listening, workers, token, patience, announce).run())
    finally:
        client.withdraw(settings.data)


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


# What a server says when it is there. Lines of markup, so that one process can say it for another.


def welcome(turnwire: Any, url: str) -> list[str]:
    from rich.markup import escape

    names = ", ".join(turnwire.agents)
    lines = [f"\n[bold]Turnwire[/] is listening on [bold cyan]{url}[/]   agents: {escape(names)}\n"]
    if turnwire.librarian is not None:
        lines.append(f"[dim]Answers come from[/] {escape(_sources(turnwire))}")
    for hosted in turnwire.kernel.extensions.values() if turnwire.kernel is not None else ():
        # That the channels of our own run which nobody has set up is no news.
        is_news = hosted.is_up and (hosted.found.source != "bundled" or hosted.manifest.secrets)
        if is_news or hosted.state == "failed":
            told = "".join(f": {part}" for part in (hosted.message, hosted.hint) if part)
            lines.append(f"[dim]Extension[/] {hosted.id} [dim]{hosted.state}[/]{escape(told)}")
    # As it was called, if it is not on the PATH.
    program = "turnwire" if shutil.which("turnwire") else os.path.relpath(sys.argv[0])
    data = turnwire.settings.data
    in_database = turnwire.settings.database_url is not None
    if turnwire.librarian is not None:
        message = """{"message": "What happens when the process is killed?"}"""
        route = "/v1/rag/sessions/hello/messages/stream"
    else:
        message, route = """{"message": "Hello"}""", "/chat/stream"
    commands = {
        "Ask, and watch, in a browser:": f"{url}/",
        "Talk to it from another terminal:": f"{program} chat {f'--url {url}' if in_database else f'--data {data}'}",
        "Or ask with curl, and watch the answer being made:": (
            f"curl -N {url}{route} -H 'Content-Type: application/json' -d '{message}'"
        ),
        "Break it off at any moment and go on after the last id you saw:": (
            f"curl -N '{url}/v1/turns/TURN_ID/events?after=12'"
        ),
    }
    if not in_database:
        commands["Watch the newest turn from another terminal:"] = f"{program} tail --data {data}"
    for what, command in commands.items():
        lines += [f"[dim]{what}[/]", f"  {escape(command)}"]
    return [*lines, f"[dim]All routes:[/] {url}/docs   [dim]Stop: Ctrl+C[/]\n"]


def show(lines: Sequence[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        # Unwrapped, so that it can be copied as it stands.
        console.print(line, soft_wrap=True)


def _sources(turnwire: Any) -> str:
    roots = [root.path for root in turnwire.librarian.roots if not root.is_own]
    if not roots:
        return "Turnwire's own documentation; give it yours with --docs PATH"
    model = turnwire.settings.model
    return f"{', '.join(map(str, roots))}, {f'written by {model}' if model else 'quoted (no model is configured)'}"
