"""`turnwire chat` and `turnwire ask`: the terminal as a client of a running server, or of this process."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.commands import TALK, Commands
from turnwire.cli.options import Data, Key, Sections, Url, complete_id, fail, takes_plugin_options

if TYPE_CHECKING:
    from turnwire.channels.console.host import Host, HostOptions
    from turnwire.channels.console.view import View
    from turnwire.client import TurnUpdate

# The exit codes of `ask`. Those above 128 are what a shell reports for SIGINT, SIGPIPE and SIGTERM.
COMPLETED, FAILED, USAGE, INTERRUPTED, CANCELLED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143
_TASK_GRACE_SECONDS = 0.5
# The ids of sessions begin with their time; a shorter text is more likely an id of the caller's own.
_ID_BEGINNING = re.compile(r"[0-9a-f]{8}(-[0-9a-f-]{0,26})?")
_MAX_SESSIONS = 200

Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="<agent>",
        help="The agent to ask, by name; or [bold]\\[name=]module:name[/] to import one, without a server. "
        "May be repeated.",
    ),
]
Embedded = Annotated[bool, typer.Option("--embedded", help="Answer in this process, without a server.")]
SessionId = Annotated[
    str | None, typer.Option("--session", help="Continue the session with this id, or its beginning.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain text: no colours, nothing is redrawn.")]


def add_commands(commands: Commands) -> None:
    commands.add("chat", chat, TALK, "", "--agent my_module:agent", "--url https://agents.example --key tw_…")
    commands.add("ask", ask, TALK, '"What is a turn?"', "--json - < question.txt", '--session 01a1e348 "And then?"')


@takes_plugin_options
def chat(
    data: Data,
    url: Url = None,
    key: Key = None,
    agent: Agents = None,
    embedded: Embedded = False,
    extensions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="<path>", help="A folder of extensions to run, without a server; may be repeated.", exists=True
        ),
    ] = None,
    session: SessionId = None,
    plain: Plain = False,
    channel: Annotated[
        bool,
        typer.Option(
            "--channel", help="Talk through the channel [bold]console[/], with its extensions, as in Telegram."
        ),
    ] = False,
    *,
    sections: Sections,
) -> None:
    """Talk to an agent in the terminal. Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("chat needs a terminal; in a pipe, use `turnwire ask`", USAGE)
    if channel and session is not None:
        fail("--channel keeps a conversation of its own; leave out --session", USAGE)
    options = _host_options(data, url, key, agent, sections, embedded, extensions, channel=channel)
    raise typer.Exit(_run(_chat_on_channel(options, plain) if channel else _chat(options, session, plain)))


@takes_plugin_options
def ask(
    data: Data,
    question: Annotated[str, typer.Argument(help="The question; [bold]-[/] reads it from the standard input.")],
    url: Url = None,
    key: Key = None,
    agent: Agents = None,
    embedded: Embedded = False,
    session: SessionId = None,
    plain: Plain = False,
    json: Annotated[bool, typer.Option("--json", help="Print the log's events, one per line.")] = False,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="<path>",
            help="A file to send with the question; may be repeated.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    *,
    sections: Sections,
) -> None:
    """Ask one question. The answer goes to the standard output, everything else to the standard error.

    Exits with 0 for an answer, 1 for a failure, 2 for wrong usage, 3 if the server was lost, 130 if it was stopped.
    """
    if question == "-":
        question = sys.stdin.read()
    if not question.strip() and not file:
        fail("the question is empty", USAGE)
    options = _host_options(data, url, key, agent, sections, embedded)
    raise typer.Exit(_run(_ask(options, question, session, file or [], plain=plain, json=json)))


def _host_options(
    data: Path,
    url: str | None,
    key: str | None,
    agents: list[str] | None,
    sections: Sections,
    embedded: bool,
    extensions: list[Path] | None = None,
    *,
    channel: bool = False,
) -> "HostOptions":
    from turnwire.channels.console.host import HostOptions

    options = HostOptions(data, url, key, tuple(agents or ()), sections, embedded, tuple(extensions or ()), channel)
    if url is not None and options.must_be_embedded:
        names = "--embedded, --docs, --vault, --extensions, --channel and --agent module:name"
        fail(f"--url asks a server; {names} run without one", USAGE)
    return options


async def _chat(options: "HostOptions", session_id: str | None, plain: bool) -> int:
    from rich.text import Text

    from turnwire.channels.console.chat import Chat
    from turnwire.channels.console.host import open_host
    from turnwire.channels.console.screen import process_screen, terminal_console
    from turnwire.channels.console.view import LiveView, PlainView

    # Extensions of this process print to the same screen.
    screen = process_screen()
    is_plain = plain or screen.console.is_dumb_terminal
    if is_plain:
        screen.console = terminal_console(plain=True)
    screen.claim(options)
    async with open_host(options, screen) as host:
        screen.print(
            Text.assemble(("Turnwire", "bold"), f" · answers come from {host.name}"),
            Text("/help for commands, Ctrl-D to leave", "dim"),
            Text(),
        )
        await Chat(
            host,
            screen,
            lambda: PlainView(sys.stdout, sys.stdout, shares_terminal=True) if is_plain else LiveView(screen),
            session_id=await _session_id(host, session_id),
            agent=options.agent_name,
            history=options.data / "chat_history",
            plain=is_plain,
        ).run()
    return COMPLETED


async def _chat_on_channel(options: "HostOptions", plain: bool) -> int:
    """Run the channel `console` in this process, and send it what is typed."""
    from rich.text import Text

    from turnwire.channels.console.channel import USER
    from turnwire.channels.console.chat import Prompt
    from turnwire.channels.console.host import open_channel
    from turnwire.channels.console.screen import process_screen, terminal_console
    from turnwire.core.errors import TurnwireError
    from turnwire.extensions.calls import Background

    screen = process_screen()
    if plain or screen.console.is_dumb_terminal:
        screen.console = terminal_console(plain=True)
    async with open_channel(options, screen) as (console, agents):
        screen.print(
            Text.assemble(("Turnwire", "bold"), f" · the channel console, answers come from this process ({agents})"),
            Text("Ctrl-C stops an answer, Ctrl-D leaves", "dim"),
            Text(),
        )
        prompt = Prompt(screen, options.data / "chat_history", {}, plain=plain)

        async def read() -> str:
            while True:
                try:
                    return await prompt.read()
                except KeyboardInterrupt:
                    screen.print(Text("Ctrl-D leaves.", "dim"))

        async def stop() -> None:
            assert console.context is not None
            try:
                await console.context.cancel(USER)
            except TurnwireError as error:
                screen.print(Text(f"✗ the answer could not be stopped: {error}", "red"))

        stopping = Background()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: stopping.run(stop()))
        await console.converse(read)
    return COMPLETED


async def _ask(
    options: "HostOptions", question: str, session_id: str | None, files: list[Path], *, plain: bool, json: bool
) -> int:
    from contextlib import nullcontext

    from rich.console import Console

    from turnwire.channels.console.conversation import Conversation
    from turnwire.channels.console.host import open_host
    from turnwire.channels.console.keyboard import Keyboard
    from turnwire.channels.console.screen import Screen, terminal_console
    from turnwire.channels.console.view import JsonView, LiveView, PlainView
    from turnwire.client import attachment

    console = terminal_console()
    is_live = not (plain or json) and sys.stdout.isatty() and not console.is_dumb_terminal
    screen = Screen(console if is_live else Console(file=sys.stderr, highlight=False, color_system=None))
    view = LiveView(screen) if is_live else PlainView(sys.stdout, sys.stderr, shares_terminal=sys.stdout.isatty())
    view = JsonView(sys.stdout, sys.stderr) if json else view
    keyboard = Keyboard(collects=False) if sys.stdin.isatty() and sys.stderr.isatty() else None
    async with open_host(options, screen) as host:
        conversation = Conversation(host, view, keyboard)
        session = await _session_id(host, session_id)
        attachments = [attachment(path) for path in files]
        turn = host.converse(question, session_id=session, agent=options.agent_name, attachments=attachments)
        if not json:
            turn = _announced(turn, view, f"answered by {host.name}")
        with keyboard.listening() if keyboard else nullcontext():
            await conversation.show(turn)
    outcome = conversation.presenter.outcome
    return {"completed": COMPLETED, "cancelled": CANCELLED, "interrupted": INTERRUPTED}.get(outcome or "", FAILED)


async def _announced(turn: "AsyncGenerator[TurnUpdate]", view: "View", line: str) -> "AsyncGenerator[TurnUpdate]":
    """Yield the updates of a turn, and print `line` before the first one: until then no server has answered."""
    async with aclosing(turn):
        async for update in turn:
            if line:
                view.line(line)
                line = ""
            yield update


async def _session_id(host: "Host", part: str | None) -> str | None:
    """Complete the beginning of a session's id. Any other text is an id of a client's own: return it."""
    if part is None or not _ID_BEGINNING.fullmatch(part):
        return part
    return complete_id(part, [session.id for session in await host.sessions(_MAX_SESSIONS)], by_end=False)


def _run(program: Coroutine[Any, Any, int]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a character shows another one instead of failing.
            stream.reconfigure(errors="replace")
    try:
        return asyncio.run(_run_to_exit_code(program))
    except KeyboardInterrupt:
        return CANCELLED


async def _run_to_exit_code(program: Coroutine[Any, Any, int]) -> int:
    from turnwire.channels.console.conversation import UserLeft
    from turnwire.cli.server_errors import HostError

    _cancel_on_signals()
    try:
        code = await program
    except HostError as error:
        typer.secho(f"turnwire: {error}", fg="red", err=True)
        code = FAILED
    except UserLeft:
        code = CANCELLED
    except asyncio.CancelledError:
        code = TERMINATED
    except BrokenPipeError:
        # The reader of the output is gone; flushing at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        _, stuck = await asyncio.wait(others, timeout=_TASK_GRACE_SECONDS)
        if stuck:
            # Everything is committed and closed; an agent that ignores cancellation must not keep the process.
            sys.stdout.flush()
            os._exit(code)
    return code


def _cancel_on_signals() -> None:
    """Cancel the program when the terminal is closed or the process is killed, so that terminal modes are restored."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for name in ("SIGTERM", "SIGHUP"):
        with suppress(NotImplementedError, AttributeError):
            loop.add_signal_handler(getattr(signal, name), task.cancel)
