"""`turnwire serve`: run agents and serve their turns over HTTP, in one process or several."""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.client import announce, withdraw
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

if TYPE_CHECKING:
    from turnwire.cli.supervisor import SupervisorChannel

# The time after the turns for extensions, agents and database connections to close.
_CLOSE_SECONDS = 30.0


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
    workers: Annotated[int, typer.Option(help="The number of processes; more than one needs PostgreSQL.")] = 1,
    log_level: LogLevel = "warning",
) -> None:
    """Run agents and serve their turns. Without an agent, answer from documents: yours, or Turnwire's own."""
    from turnwire.cli.supervisor import SupervisorChannel

    settings = load_settings(config, data=data, database_url=database_url, host=host, port=port, vault=vault)
    configure_logging(settings, log_level)
    channel = SupervisorChannel.inherited()
    if channel is None:
        _check(settings, workers)
        home = settings.data if settings.database_url is None else "PostgreSQL"
        typer.echo(f"Starting Turnwire with the logs in {home} …")
        if workers > 1:
            sys.exit(_supervise(settings, workers))
    # Only the first of several processes runs extensions: two would answer everything twice.
    folders = extensions or [] if channel is None or channel.orders.number == 1 else None
    token = channel.orders.control_token if channel is not None else None
    turnwire = build_turnwire(settings, agent or [], docs or [], watch, folders, token)
    if channel is None:
        serve_alone(turnwire)
    else:
        _serve_supervised(turnwire, channel)


def _check(settings: Any, workers: int) -> None:
    if workers < 1:
        fail("--workers: at least one process is needed")
    if workers > 1 and settings.database_url is None:
        fail(
            "only one process can write the SQLite store; --workers above 1 needs PostgreSQL, "
            f"which any number can share.\n{POSTGRES_HINT}"
        )
    if workers > 1 and sys.platform == "win32":
        fail("--workers above 1 needs a system whose processes inherit sockets; start several servers instead")
    if not _is_loopback(settings.host) and not _has_keys(settings):
        command = (
            f"turnwire keys create NAME --data {settings.data}"
            if settings.database_url is None
            else "turnwire keys create NAME, with TURNWIRE_DATABASE_URL in the environment"
        )
        fail(
            f"listening on {settings.host} opens the server to the network, and there is no API key yet.\n"
            f"Create one first: {command}"
        )


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


def serve_alone(turnwire: Any) -> None:
    """Serve in this process until a signal ends it, and tell clients of this machine where."""
    from turnwire.cli.web_server import WebServer, listen, url_of

    settings = turnwire.settings
    listening = listen(settings.host, settings.port)
    settings.port = listening.getsockname()[1]
    url = url_of(settings.host, listening)

    def on_started() -> None:
        announce(settings.data, url, turnwire.control_token)
        _print_lines(_welcome(turnwire, url))

    server = WebServer(turnwire, on_started, lambda: withdraw(settings.data))
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def _serve_supervised(turnwire: Any, channel: "SupervisorChannel") -> None:
    from turnwire.cli.web_server import WebServer, url_of

    settings = turnwire.settings
    settings.port = channel.listening.getsockname()[1]

    def on_started() -> None:
        channel.follow(turnwire, server.refuse_connections)
        channel.send_ready(_welcome(turnwire, url_of(settings.host, channel.listening)))

    server = WebServer(turnwire, on_started, lambda: None)
    server.run(sockets=[channel.listening])
    if not server.started:
        sys.exit(1)


def _supervise(settings: Any, workers: int) -> int:
    from turnwire.cli.supervisor import Supervisor
    from turnwire.cli.web_server import listen, url_of
    from turnwire.server.auth import new_control_token

    listening = listen(settings.host, settings.port)
    url, token = url_of(settings.host, listening), new_control_token()

    def on_started(lines: Sequence[str]) -> None:
        announce(settings.data, url, token)
        _print_lines([*lines, f"[dim]In {workers} processes; `kill -HUP` replaces them one by one.[/]\n"])

    end_timeout = settings.drain_delay + settings.shutdown_grace + _CLOSE_SECONDS
    try:
        return asyncio.run(Supervisor(listening, workers, token, end_timeout, on_started).run())
    finally:
        withdraw(settings.data)


def _welcome(turnwire: Any, url: str) -> list[str]:
    """Return the start message as lines of markup, which the supervisor can print for a process."""
    from rich.markup import escape

    names = ", ".join(turnwire.agents)
    lines = [f"\n[bold]Turnwire[/] is listening on [bold cyan]{url}[/]   agents: {escape(names)}\n"]
    if turnwire.librarian is not None:
        lines.append(f"[dim]Answers come from[/] {escape(_sources(turnwire))}")
    for extension in turnwire.kernel.extensions.values() if turnwire.kernel is not None else ():
        # Bundled channels that nobody configured run always, so they are left out.
        is_news = extension.is_up and (extension.found.source != "bundled" or extension.manifest.secrets)
        if is_news or extension.state == "failed":
            details = "".join(f": {part}" for part in (extension.message, extension.hint) if part)
            lines.append(f"[dim]Extension[/] {extension.id} [dim]{extension.state}[/]{escape(details)}")
    # The program as it was called, if it is not on the PATH.
    program = "turnwire" if shutil.which("turnwire") else os.path.relpath(sys.argv[0])
    data = turnwire.settings.data
    in_database = turnwire.settings.database_url is not None
    if turnwire.librarian is not None:
        message = """{"message": "What happens when the process is killed?"}"""
        route = "/v1/rag/sessions/hello/messages/stream"
    else:
        message, route = """{"message": "Hello"}""", "/chat/stream"
    commands = {
        "Open the web page:": f"{url}/",
        "Chat in another terminal:": f"{program} chat {f'--url {url}' if in_database else f'--data {data}'}",
        "Ask with curl, and watch the answer stream:": (
            f"curl -N {url}{route} -H 'Content-Type: application/json' -d '{message}'"
        ),
        "Stop it at any moment, and resume after the last id you saw:": (
            f"curl -N '{url}/v1/turns/TURN_ID/events?after=12'"
        ),
    }
    if not in_database:
        commands["Follow the newest turn in another terminal:"] = f"{program} tail --data {data}"
    for purpose, command in commands.items():
        lines += [f"[dim]{purpose}[/]", f"  {escape(command)}"]
    return [*lines, f"[dim]All routes:[/] {url}/docs   [dim]Stop: Ctrl+C[/]\n"]


def _sources(turnwire: Any) -> str:
    roots = [root.path for root in turnwire.librarian.roots if not root.is_own]
    if not roots:
        return "Turnwire's own documentation; use yours with --docs PATH"
    model = turnwire.settings.model
    return f"{', '.join(map(str, roots))}, {f'written by {model}' if model else 'quoted (no model is configured)'}"


def _print_lines(lines: Sequence[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        # Not wrapped, so that commands can be copied.
        console.print(line, soft_wrap=True)
