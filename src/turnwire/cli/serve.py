"""`turnwire serve` and `turnwire worker`: the processes that run agents, with HTTP and without.

A server runs in one process or, on PostgreSQL, in several; a worker runs the turns that servers accept.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.client import announce, withdraw
from turnwire.cli.options import (
    DATA_DEFAULT,
    Sections,
    fail,
    load_agents,
    load_settings,
    takes_plugin_options,
)

if TYPE_CHECKING:
    from socket import socket

    from turnwire.app import Turnwire
    from turnwire.cli.supervisor import Role, SupervisorChannel
    from turnwire.settings import Settings

_POSTGRES_HINT = (
    "pip install 'turnwire[postgres]', and name a database with "
    "--database-url postgresql://user@host/name or TURNWIRE_DATABASE_URL"
)
_QUESTION = """{"message": "What happens when the process is killed?"}"""
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
# The time after the turns for extensions, agents and database connections to close.
_CLOSE_SECONDS = 30.0


def _check_level(level: str) -> str:
    if level.lower() not in _LOG_LEVELS:
        raise typer.BadParameter(f"choose one of {', '.join(_LOG_LEVELS)}")
    return level


# Options of both commands: each overrides the setting of its name.
DataSetting = Annotated[
    Path | None, typer.Option("--data", help="The data folder, with the logs.", show_default=DATA_DEFAULT)
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="A PostgreSQL database for the logs instead.", show_default="$TURNWIRE_DATABASE_URL"),
]
Config = Annotated[
    Path | None, typer.Option(help="A TOML file of settings; the environment overrides it.", dir_okay=False)
]
Agents = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<agent>", help="An agent, as [bold]module:name[/] or [bold]name=module:name[/]; may be repeated."
    ),
]
Demo = Annotated[bool, typer.Option("--demo", help="Make the scripted demo the default agent.")]
Extensions = Annotated[
    list[Path] | None,
    typer.Option(metavar="<path>", help="A folder of extensions, or one extension; may be repeated.", exists=True),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A language model that writes the answers, such as [bold]ollama/qwen3[/] or [bold]openai/gpt-5-mini[/].",
        show_default="none",
    ),
]
ModelUrl = Annotated[
    str | None,
    typer.Option(help="The URL of any other server with an OpenAI-compatible API; then the name is used as it is."),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.", callback=_check_level)]


@takes_plugin_options
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
    demo: Demo = False,
    model: ModelName = None,
    model_url: ModelUrl = None,
    extensions: Extensions = None,
    allow_extension: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<id>",
            help="An extension of your own folder or of an installed package, which runs then; may be repeated.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="The number of processes; more than one needs PostgreSQL. With --isolate, of each kind.",
            show_default="1, or 2 with --isolate",
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="Run agents in processes of their own, so that one that blocks stalls no stream. Needs PostgreSQL.",
        ),
    ] = False,
    log_level: LogLevel = "warning",
    *,
    sections: Sections,
) -> None:
    """Run agents and serve their turns. Without an agent, answer from documents: yours, or Turnwire's own."""
    from turnwire.cli.supervisor import SupervisorChannel

    settings = load_settings(
        config,
        data=data,
        database_url=database_url,
        host=host,
        port=port,
        model=model,
        model_url=model_url,
        allowed_extensions=allow_extension or None,
        **sections,
    )
    configure_logging(settings, log_level)
    channel = SupervisorChannel.inherited()
    if channel is None:
        workers = workers if workers is not None else 2 if isolate else 1
        check_server(settings, workers, isolate=isolate)
        home = settings.data if settings.database_url is None else "PostgreSQL"
        typer.echo(f"Starting Turnwire with the logs in {home} …")
        if workers > 1 or isolate:
            sys.exit(_supervise(settings, workers, isolate=isolate))
    token = channel.orders.control_token if channel is not None else None
    role = channel.orders.role if channel is not None else "both"
    if role == "serve":
        settings.max_worker_turns = 0
    turnwire = build_turnwire(settings, agent or [], extensions or [], token, demo=demo, isolated=role == "run")
    if channel is None:
        serve_alone(turnwire)
    elif role == "run":
        run_supervised(turnwire, channel)
    else:
        serve_supervised(turnwire, channel)


@takes_plugin_options
def worker(
    data: DataSetting = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    agent: Agents = None,
    demo: Demo = False,
    extensions: Extensions = None,
    log_level: LogLevel = "warning",
    *,
    sections: Sections,
) -> None:
    """Run the turns that servers on the same PostgreSQL database accept. It listens on no address."""
    settings = load_settings(config, data=data, database_url=database_url, **sections)
    if settings.database_url is None:
        fail(
            "a worker shares its store with servers, and only one process can use the SQLite store.\n"
            f"{_POSTGRES_HINT}, the same as the servers'"
        )
    if settings.max_worker_turns == 0:
        fail("max_worker_turns is 0, so this worker would run no turns; set it to 1 or more")
    configure_logging(settings, log_level)
    typer.echo("Starting a Turnwire worker for the logs in PostgreSQL …")
    # No load balancer sends requests here.
    settings.drain_delay = 0
    # Without --extensions it runs none: it may be on a machine without their secrets.
    turnwire = build_turnwire(settings, agent or [], extensions or None, demo=demo)
    names = ", ".join(turnwire.agents)
    limit = turnwire.settings.max_worker_turns

    def on_started() -> None:
        typer.echo(f"Running turns of {names}; up to {limit:,} at once. Stop: Ctrl+C")

    asyncio.run(_work(turnwire, on_started))


def configure_logging(settings: "Settings", level: str) -> None:
    from turnwire.reporting.logs import configure

    configure(settings.log_format, level, content="log" in settings.content_in)


def build_turnwire(
    settings: "Settings",
    agents: Sequence[str],
    extensions: Sequence[Path] | None,
    control_token: str | None = None,
    *,
    demo: bool,
    isolated: bool = False,
) -> "Turnwire":
    """Build the application. With `extensions=None` it runs no extensions, whatever the settings say.

    Without any agent that the operator has named, the demo agent is added as the last one.
    """
    from turnwire.app import Turnwire

    if extensions is None:
        settings = settings.model_copy(update={"extensions": []})
    try:
        return Turnwire(
            agents=load_agents(agents),
            store="sqlite" if settings.database_url is None else "postgres",
            settings=settings,
            demo="first" if demo else "last",
            extensions=extensions,
            control_token=control_token,
            isolated=isolated,
        )
    except ValueError as error:
        fail(str(error))


# A server.


def check_server(settings: "Settings", workers: int, *, isolate: bool = False) -> None:
    if isolate and settings.database_url is None:
        fail(
            "--isolate needs PostgreSQL: its processes share the store, and only one process can use the SQLite store. "
            "On SQLite, an agent that is not async runs in threads, and blocks no other turn.\n"
            f"{_POSTGRES_HINT}"
        )
    if isolate and settings.max_worker_turns == 0:
        fail("max_worker_turns is 0, so no process would run turns; set it to 1 or more")
    if workers < 1:
        fail("--workers: at least one process is needed")
    if workers > 1 and settings.database_url is None:
        fail(
            "only one process can write the SQLite store; --workers above 1 needs PostgreSQL, "
            f"which any number can share.\n{_POSTGRES_HINT}"
        )
    if (workers > 1 or isolate) and sys.platform == "win32":
        options = "--workers above 1 and --isolate"
        fail(f"{options} need a system whose processes inherit sockets; start several servers instead")
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


def _has_keys(settings: "Settings") -> bool:
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


async def _has_keys_in_database(settings: "Settings") -> bool:
    from turnwire.assembly import build_store

    store = build_store("postgres", settings)
    await store.open()
    try:
        return bool(await store.list_keys())
    finally:
        await store.close()


def serve_alone(turnwire: "Turnwire") -> None:
    """Serve in this process until a signal ends it, and announce its address in the data folder."""
    from turnwire.cli.web_server import WebServer, listen, url_of

    settings = turnwire.settings
    listening = listen(settings.host, settings.port)
    settings.port = listening.getsockname()[1]
    url = url_of(settings.host, listening)

    notes = find_notes(turnwire)

    def on_started() -> None:
        announce(settings.data, url, turnwire.control_token, has_database=settings.database_url is not None)
        print_lines(welcome(turnwire, url, notes))

    server = WebServer(turnwire, on_started, lambda: withdraw(settings.data))
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def serve_supervised(turnwire: "Turnwire", channel: "SupervisorChannel") -> None:
    from turnwire.cli.web_server import WebServer, url_of

    settings = turnwire.settings
    settings.port = channel.listening.getsockname()[1]
    notes = find_notes(turnwire)

    def on_started() -> None:
        channel.follow(turnwire, server.refuse_connections)
        channel.send_ready(welcome(turnwire, url_of(settings.host, channel.listening), notes))

    server = WebServer(turnwire, on_started, lambda: None)
    server.run(sockets=[channel.listening])
    if not server.started:
        sys.exit(1)


def run_supervised(turnwire: "Turnwire", channel: "SupervisorChannel") -> None:
    """Run turns until the supervisor ends this process."""
    # A socket that stays open here would queue connections that this process never accepts.
    channel.listening.close()
    turnwire.settings.drain_delay = 0

    def on_started() -> None:
        channel.follow(turnwire, lambda: None)
        channel.send_ready([])

    asyncio.run(_work(turnwire, on_started))


def _supervise(settings: "Settings", workers: int, *, isolate: bool) -> int:
    from turnwire.cli.supervisor import Supervisor

    count = f"{workers} processes, and agents in {workers} more" if isolate else f"{workers} processes"
    kinds: tuple[Role, ...] = ("serve", "run") if isolate else ("both",)
    roles: list[Role] = [kind for kind in kinds for _ in range(workers)]
    end_timeout = settings.drain_delay + settings.shutdown_grace + _CLOSE_SECONDS
    return supervise(
        settings,
        f"In {count}; `kill -HUP` replaces them one by one.",
        lambda listening, token, on_started: Supervisor(listening, roles, token, end_timeout, on_started).run(),
    )


def supervise(
    settings: "Settings",
    note: str,
    run: "Callable[[socket, str, Callable[[Sequence[str]], None]], Coroutine[Any, Any, int]]",
    on_announced: Callable[[str], object] = lambda url: None,
) -> int:
    """Listen, run the supervisor of other processes, and announce its address meanwhile. Return its exit code.

    `run` gets the listening socket, the control token of the processes, and the function for the first one's welcome.
    """
    from turnwire.cli.web_server import listen, url_of
    from turnwire.server.auth import new_control_token

    listening = listen(settings.host, settings.port)
    url, token = url_of(settings.host, listening), new_control_token()

    def on_started(welcome: Sequence[str]) -> None:
        announce(settings.data, url, token, has_database=settings.database_url is not None)
        print_lines([*welcome, f"[dim]{note}[/]\n"])
        on_announced(url)

    try:
        return asyncio.run(run(listening, token, on_started))
    finally:
        withdraw(settings.data)


def find_notes(turnwire: "Turnwire") -> list[str]:
    """Return lines of markup: what is wrong with the model and the agents, and the advice of plugins."""
    from rich.markup import escape

    from turnwire.core.contracts.agents import problems_of

    problem = _model_problem(turnwire.settings)
    notes = [f"[bold red]The model cannot be used:[/] {escape(problem)}"] if problem else []
    notes += [line for plugin in turnwire.services.plugins.values() for line in plugin.advice()]
    notes += [
        f"[bold red]The agent {escape(name)} may fail:[/] {escape(problem)}"
        for name, agent in turnwire.agents.items()
        for problem in problems_of(agent)
    ]
    return notes


def _model_problem(settings: "Settings") -> str | None:
    from turnwire.core.errors import ModelUnusableError
    from turnwire.models.address import check_model, locate_model

    if not settings.model:
        return None
    key = settings.model_key.get_secret_value() if settings.model_key else None
    try:
        return check_model(locate_model(settings.model, settings.model_url, key))
    except ModelUnusableError as error:
        return str(error)


def welcome(turnwire: "Turnwire", url: str, notes: Sequence[str] = ()) -> list[str]:
    """Return the start message as lines of markup, which the supervisor can print for a process."""
    from rich.markup import escape

    from turnwire.extensions.loader import NOT_NAMED

    names = ", ".join(turnwire.agents)
    lines = [f"\n[bold]Turnwire[/] is listening on [bold cyan]{escape(url)}[/]   agents: {escape(names)}\n"]
    lines += [line for plugin in turnwire.services.plugins.values() for line in plugin.notes]
    lines += notes
    for extension in turnwire.extensions.hosts.values() if turnwire.extensions is not None else ():
        # Bundled channels that nobody configured run always, so they are left out.
        is_news = extension.is_up and (extension.found.source != "bundled" or extension.manifest.secrets)
        if is_news or extension.state == "failed" or extension.message == NOT_NAMED:
            details = "".join(f": {part}" for part in (extension.message, extension.hint) if part)
            lines.append(f"[dim]Extension[/] {extension.id} [dim]{extension.state}[/]{escape(details)}")
    # The program as it was called, if it is not on the PATH.
    program = "turnwire" if shutil.which("turnwire") else os.path.relpath(sys.argv[0])
    data = turnwire.settings.data
    in_database = turnwire.settings.database_url is not None
    key = "" if turnwire.keys.is_empty else ' -H "Authorization: Bearer $TURNWIRE_API_KEY"'
    commands = {
        "Open the web page:": f"{url}/",
        "Chat in another terminal:": f"{program} chat {f'--url {url}' if in_database else f'--data {data}'}",
        "Ask with curl, and watch the answer stream:": (
            f"curl -N {url}/chat/stream{key} -H 'Content-Type: application/json' -d '{_QUESTION}'"
        ),
        "Stop it at any moment, and resume after the last id you saw:": (
            f"curl -N '{url}/v1/turns/TURN_ID/events?after=12'{key}"
        ),
    }
    if not in_database:
        commands["Follow the newest turn in another terminal:"] = f"{program} tail --data {data}"
    for purpose, command in commands.items():
        lines += [f"[dim]{purpose}[/]", f"  {escape(command)}"]
    return [*lines, f"[dim]All routes:[/] {escape(url)}/docs   [dim]Stop: Ctrl+C[/]\n"]


def print_lines(lines: Sequence[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        # Not wrapped, so that commands can be copied.
        console.print(line, soft_wrap=True)


# A worker.


async def _work(turnwire: "Turnwire", on_started: Callable[[], None]) -> None:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop_requested.is_set():
            os._exit(128 + number)
        stop_requested.set()
        loop.call_soon_threadsafe(_print_shutdown, turnwire)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    await turnwire.open()
    on_started()
    await stop_requested.wait()
    await turnwire.close()
    if turnwire.runner.worker.has_left_behind:
        # Everything is committed and closed; an agent that ignores cancellation must not keep the process.
        os._exit(0)


def _print_shutdown(turnwire: "Turnwire") -> None:
    running = len(turnwire.runner.worker.running)
    if running:
        typer.echo(f"Shutting down; {running} turn(s) have {turnwire.settings.shutdown_grace:g} s to finish")
