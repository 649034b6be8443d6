"""`turnwire serve`."""

import logging
import os
import shutil
import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwire.cli.options import fail

_SEND_BUFFER_BYTES = 128 * 1024


def serve(
    data: Annotated[
        Path | None,
        typer.Option(help="The folder that holds the logs.", show_default="$TURNWIRE_DATA, or ~/.local/share/turnwire"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings; the environment goes before it.", dir_okay=False)
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen on; all but loopback need an API key.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on; 0 picks a free one.", show_default="8420")
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Who answers, as [bold]module:name[/] or [bold]name=module:name[/]; may be repeated."),
    ] = None,
    docs: Annotated[
        list[Path] | None,
        typer.Option(help="A file or folder of documents to answer from; may be repeated.", exists=True),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Read documents again when they change.")] = False,
    vault: Annotated[
        Path | None,
        typer.Option(help="An Obsidian vault, for an agent named vault.", exists=True, file_okay=False),
    ] = None,
    extensions: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of extensions, or one extension; may be repeated.", exists=True),
    ] = None,
    workers: Annotated[int, typer.Option(help="How many processes; more than one needs PostgreSQL.")] = 1,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run agents and serve their turns. With none, answers come from documents: yours, or Turnwire's own."""
    if workers != 1:
        fail("the SQLite store is written by one process; --workers above 1 comes with the PostgreSQL store")
    settings = _settings(config, data=data, host=host, port=port, vault=vault)
    if not _is_loopback(settings.host) and not _has_keys(settings.data):
        fail(
            f"listening on {settings.host} would let the network in, and there is no API key yet.\n"
            f"Make one first: turnwire keys create NAME --data {settings.data}"
        )
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    typer.echo(f"Starting Turnwire with the logs in {settings.data} …")
    _run(_build(settings, agent or [], docs or [], watch, extensions or []), settings.host, settings.port)


def _settings(config: Path | None, **options: Any) -> Any:
    from turnwire.settings import read_settings

    try:
        return read_settings(config, **{name: value for name, value in options.items() if value is not None})
    except ValueError as error:
        fail(str(error))


def _build(settings: Any, agents: list[str], docs: list[Path], watch: bool, extensions: list[Path]) -> Any:
    from turnwire.assembly import load_agent
    from turnwire.core.errors import TurnwireError
    from turnwire.server import Turnwire

    named: dict[str, Any] = {}
    for reference in agents:
        name, equals, target = reference.rpartition("=")
        try:
            named[name if equals else target.rpartition(":")[2]] = load_agent(target)
        except ValueError as error:
            fail(f"--agent: {error}")
    try:
        return Turnwire(agents=named, settings=settings, docs=docs, watch=watch, extensions=extensions)
    except (TurnwireError, ValueError) as error:
        fail(str(error))


def _run(turnwire: Any, host: str, port: int) -> None:
    import uvicorn

    from turnwire.cli import running

    listening = _listen(host, port)
    port = listening.getsockname()[1]
    turnwire.settings.port = port
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                running.announce(turnwire.settings.data, url, turnwire.control_token)
                _welcome(turnwire, url)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Before the process may end: uvicorn raises the signal again when it is done.
            running.withdraw(turnwire.settings.data)
            await super().shutdown(sockets)
            if turnwire.runner.has_left_behind:
                # Everything is committed and closed; an agent that will not stop must not keep the process.
                os._exit(0)

    config = uvicorn.Config(
        turnwire.asgi(),
        http="httptools",
        loop="auto",
        ws="websockets-sansio",
        ws_max_size=turnwire.settings.max_body_bytes,
        ws_ping_interval=turnwire.settings.heartbeat,
        ws_ping_timeout=turnwire.settings.write_timeout,
        # Tokens are too short to be worth it, and it takes memory for every socket.
        ws_per_message_deflate=False,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        # A backstop: streams are ended, and turns wound down, by ourselves.
        timeout_graceful_shutdown=int(turnwire.settings.shutdown_grace) + 1,
    )
    server = Server(config)
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(1)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: a reader that takes nothing holds this much in the kernel, not megabytes.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listening.bind((host, port))
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port")
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def _welcome(turnwire: Any, url: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    names = ", ".join(turnwire.agents)
    console.print(f"\n[bold]Turnwire[/] is listening on [bold cyan]{url}[/]   agents: {names}\n")
    if turnwire.librarian is not None:
        console.print(f"[dim]Answers come from[/] {_sources(turnwire)}")
    for hosted in turnwire.kernel.extensions.values():
        # That the channels of our own run which nobody has set up is no news.
        is_news = hosted.is_up and (hosted.found.source != "bundled" or hosted.manifest.secrets)
        if is_news or hosted.state == "failed":
            told = "".join(f": {part}" for part in (hosted.message, hosted.hint) if part)
            console.print(f"[dim]Extension[/] {hosted.id} [dim]{hosted.state}[/]{escape(told)}", soft_wrap=True)
    # As it was called, if it is not on the PATH.
    program = "turnwire" if shutil.which("turnwire") else os.path.relpath(sys.argv[0])
    console.print("[dim]Ask, and watch, in a browser:[/]")
    _command(console, f"{url}/")
    console.print("[dim]Talk to it from another terminal:[/]")
    _command(console, f"{program} chat --data {turnwire.settings.data}")
    console.print("[dim]Or ask with curl, and watch the answer being made:[/]")
    if turnwire.librarian is not None:
        message = """{"message": "What happens when the process is killed?"}"""
        route = "/v1/rag/sessions/hello/messages/stream"
    else:
        message, route = """{"message": "Hello"}""", "/chat/stream"
    _command(console, f"curl -N {url}{route} -H 'Content-Type: application/json' -d '{message}'")
    console.print("[dim]Break it off at any moment and go on after the last id you saw:[/]")
    _command(console, f"curl -N '{url}/v1/turns/TURN_ID/events?after=12'")
    console.print("[dim]Watch the newest turn from another terminal:[/]")
    _command(console, f"{program} tail --data {turnwire.settings.data}")
    console.print(f"[dim]All routes:[/] {url}/docs   [dim]Stop: Ctrl+C[/]\n")


def _sources(turnwire: Any) -> str:
    roots = [root.path for root in turnwire.librarian.roots if not root.is_own]
    if not roots:
        return "Turnwire's own documentation; give it yours with --docs PATH"
    model = turnwire.settings.model
    return f"{', '.join(map(str, roots))}, {f'written by {model}' if model else 'quoted (no model is configured)'}"


def _command(console: Any, text: str) -> None:
    # Unwrapped, so that it can be copied as it stands.
    console.print(f"  {text}", soft_wrap=True, markup=False)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _has_keys(data: Path) -> bool:
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite import SqliteArchive

    try:
        archive = SqliteArchive(data)
    except StoreUnusableError:
        return False
    try:
        return archive.has_keys()
    finally:
        archive.close()
