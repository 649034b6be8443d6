"""`turnwire dev`: a server that starts again whenever the code of its agents changes.

This process holds the listening socket, watches the files, and runs the server as a child. A change ends the child at
once: running turns are handed over to the next one, and requests wait in the socket meanwhile.
"""

import asyncio
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Sections, fail, load_settings, takes_plugin_options
from turnwire.cli.serve import (
    Agents,
    Config,
    DataSetting,
    build_turnwire,
    check_server,
    configure_logging,
    serve_supervised,
    supervise,
)

if TYPE_CHECKING:
    from turnwire.cli.supervisor import Child

_END_SECONDS = 10.0


@takes_plugin_options
def dev(
    agent: Agents = None,
    data: DataSetting = None,
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on; 0 picks a free one.", show_default="8420")
    ] = None,
    watch: Annotated[
        list[Path] | None,
        typer.Option(help="A folder whose Python files are watched; may be repeated.", show_default="the current one"),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    *,
    sections: Sections,
) -> None:
    """Serve agents while you write them: restart on every change, and show tracebacks here.

    Running turns do not delay a restart; those that can continue, continue in the new process.
    """
    from turnwire.cli.supervisor import SupervisorChannel

    settings = load_settings(config, data=data, port=port, **sections)
    # A developer is the only user: errors may quote messages, and nobody waits for turns to finish.
    settings.content_in, settings.shutdown_grace, settings.drain_delay = ["log", *settings.content_in], 0, 0
    channel = SupervisorChannel.inherited()
    if channel is not None:
        configure_logging(settings, "warning")
        serve_supervised(build_turnwire(settings, agent or [], [], demo=False), channel)
        return
    check_server(settings, 1)
    if not agent:
        fail("name an agent, such as --agent my_module:agent")
    folders = watch or [Path.cwd()]
    code = supervise(
        settings,
        "Restarts when a Python file changes. Ctrl+C ends it.",
        lambda listening, token, on_started: Reloader(listening, token, folders, on_started).run(),
        lambda url: open_page and sys.stdout.isatty() and webbrowser.open(f"{url}/"),
    )
    sys.exit(code)


class Reloader:
    """Runs the server as a child process, and replaces the child when a file changes.

    `on_started` is called once, with the welcome of the first child that starts.
    """

    def __init__(
        self,
        listening: socket.socket,
        control_token: str,
        folders: Sequence[Path],
        on_started: Callable[[Sequence[str]], None],
    ) -> None:
        self._listening = listening
        self._control_token = control_token
        self._folders = folders
        self._on_started = on_started
        self._has_started = False
        self._stopped = asyncio.Event()
        self._changed = asyncio.Event()
        self._changed_file = ""

    async def run(self) -> int:
        """Run until a signal stops it. Return the process's exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        watching = asyncio.create_task(self._watch())
        try:
            while not self._stopped.is_set():
                self._changed.clear()
                await self._run_child()
        finally:
            watching.cancel()
        return 0

    async def _run_child(self) -> None:
        from turnwire.cli.supervisor import Child, WorkerOrders

        child = await Child.start(self._listening, WorkerOrders(1, self._control_token))
        started = asyncio.create_task(child.ready())
        await self._wait_for(started)
        welcome = started.result() if started.done() else None
        if welcome is not None and not self._has_started:
            self._has_started = True
            self._on_started(welcome)
        if welcome is not None:
            ended = asyncio.create_task(child.process.wait())
            await self._wait_for(ended)
            ended.cancel()
        started.cancel()
        await self._end(child)
        if self._stopped.is_set():
            return
        if not self._changed.is_set():
            typer.secho("The server has ended; it starts again when a file changes.", fg="yellow")
            await self._wait_for()
        if not self._stopped.is_set():
            typer.secho(f"{self._changed_file} has changed: restarting …", fg="cyan")

    async def _wait_for(self, *tasks: "asyncio.Task[object]") -> None:
        """Wait until one of the tasks is done, a file has changed, or the command is stopped."""
        waits = [asyncio.create_task(self._changed.wait()), asyncio.create_task(self._stopped.wait())]
        await asyncio.wait([*tasks, *waits], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _end(self, child: "Child") -> None:
        child.signal(signal.SIGTERM)
        await child.wait_ended(_END_SECONDS)

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch  # pyright: ignore[reportUnknownVariableType]

        async for changes in awatch(*self._folders, watch_filter=PythonFilter()):
            self._changed_file = Path(sorted(path for _, path in changes)[0]).name
            self._changed.set()
