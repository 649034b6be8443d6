"""`turnwire chat` and `turnwire ask`: the terminal as a client, of a running server or of this very process."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from turnwire.cli.options import Data, Key, Url

if TYPE_CHECKING:
    from turnwire.channels.console.hosts import Host
    from turnwire.cli.hosts import Wanted

_PATIENCE_SECONDS = 0.5
COMPLETED, FAILED, USAGE, INTERRUPTED, CANCELLED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143
"""What `ask` exits with. A turn that was stopped, and a reader that went away, are told as by any other program."""

Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        help="Who answers, by name; or [bold]\\[name=]module:name[/] to bring one along, which needs no server. "
        "May be repeated.",
    ),
]
Docs = Annotated[
    list[Path] | None,
    typer.Option(help="Documents to answer from, without a server; may be repeated.", exists=True),
]
Embedded = Annotated[bool, typer.Option("--embedded", help="Answer in this process, without a server.")]
SessionId = Annotated[str | None, typer.Option("--session", help="The conversation to go on with, by its id.")]
Plain = Annotated[bool, typer.Option("--plain", help="Plain text: no colours, nothing is redrawn.")]


def chat(
    data: Data,
    url: Url = None,
    key: Key = None,
    agent: Agents = None,
    docs: Docs = None,
    embedded: Embedded = False,
    extensions: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of extensions to run along, without a server; may be repeated.", exists=True),
    ] = None,
    session: SessionId = None,
    plain: Plain = False,
) -> None:
    """Talk to an agent in the terminal. Ctrl-C stops an answer, Ctrl-D leaves, /help shows the rest."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _refuse("chat needs a terminal; in a pipe, use `turnwire ask`")
    wanted = _wanted(data, url, key, agent, docs, embedded, extensions)
    raise typer.Exit(_run(_chat(wanted, session, plain)))


def ask(
    data: Data,
    question: Annotated[str, typer.Argument(help="What to ask; [bold]-[/] reads it from the standard input.")],
    url: Url = None,
    key: Key = None,
    agent: Agents = None,
    docs: Docs = None,
    embedded: Embedded = False,
    session: SessionId = None,
    plain: Plain = False,
    json: Annotated[bool, typer.Option("--json", help="The log's events as they are, one a line.")] = False,
) -> None:
    """Ask one question. The answer goes to the standard output, everything about it to the standard error.

    Exits with 0 for an answer, 1 for a failure, 2 for a wrong call, 3 if the server was lost, 130 if it was stopped.
    """
    if question == "-":
        question = sys.stdin.read()
    if not question.strip():
        _refuse("there is no question")
    wanted = _wanted(data, url, key, agent, docs, embedded)
    raise typer.Exit(_run(_ask(wanted, question, session, plain=plain, json=json)))


def _wanted(
    data: Path,
    url: str | None,
    key: str | None,
    agents: list[str] | None,
    docs: list[Path] | None,
    embedded: bool,
    extensions: list[Path] | None = None,
) -> "Wanted":
    from turnwire.cli.hosts import Wanted

    wanted = Wanted(data, url, key, tuple(agents or ()), tuple(docs or ()), embedded, tuple(extensions or ()))
    if url is not None and wanted.must_be_embedded:
        _refuse("--url asks a server; --embedded, --docs, --extensions and --agent module:name do without one")
    return wanted


def _refuse(message: str) -> NoReturn:
    typer.secho(f"turnwire: {message}", fg="red", err=True)
    raise typer.Exit(USAGE)


def _run(program: Coroutine[Any, Any, int]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a character shows another; it is no reason to fail.
            stream.reconfigure(errors="replace")
    try:
        return asyncio.run(_to_its_end(program))
    except KeyboardInterrupt:
        return CANCELLED


async def _to_its_end(program: Coroutine[Any, Any, int]) -> int:
    from turnwire.channels.console.conversation import Left
    from turnwire.channels.console.hosts import HostError

    _cancel_when_told()
    try:
        code = await program
    except HostError as error:
        typer.secho(f"turnwire: {error}", fg="red", err=True)
        code = FAILED
    except Left:
        code = CANCELLED
    except asyncio.CancelledError:
        code = TERMINATED
    except BrokenPipeError:
        # Whoever read the output is gone. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        _, stuck = await asyncio.wait(others, timeout=_PATIENCE_SECONDS)
        if stuck:
            # Everything is committed and closed; an agent that will not stop must not keep the process.
            sys.stdout.flush()
            os._exit(code)
    return code


def _cancel_when_told() -> None:
    """A terminal that is closed, or a `kill`, ends the program in order: the terminal's modes are given back."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for name in ("SIGTERM", "SIGHUP"):
        with suppress(NotImplementedError, AttributeError):
            loop.add_signal_handler(getattr(signal, name), task.cancel)


async def _chat(wanted: "Wanted", session_id: str | None, plain: bool) -> int:
    from rich.text import Text

    from turnwire.channels.console.chat import Chat
    from turnwire.channels.console.screen import terminal_console, the_screen
    from turnwire.channels.console.view import LiveView, PlainView
    from turnwire.cli import hosts

    # The one that extensions of this process speak to as well.
    screen = the_screen()
    is_plain = plain or screen.console.is_dumb_terminal
    if is_plain:
        screen.console = terminal_console(plain=True)
    screen.claim(wanted)
    async with hosts.opened(wanted, screen) as host:
        screen.say(
            Text.assemble(("Turnwire", "bold"), f" · answers come from {await _about(host)}"),
            Text("/help for commands, Ctrl-D to leave", "dim"),
            Text(),
        )
        talk = Chat(
            host,
            screen,
            lambda: PlainView(sys.stdout, sys.stdout, share_a_terminal=True) if is_plain else LiveView(screen),
            session_id=session_id,
            agent=wanted.agent_name,
            history=wanted.data / "chat_history",
            plain=is_plain,
        )
        await talk.run()
    return COMPLETED


async def _ask(wanted: "Wanted", question: str, session_id: str | None, *, plain: bool, json: bool) -> int:
    from contextlib import nullcontext

    from rich.console import Console

    from turnwire.channels.console.conversation import Conversation
    from turnwire.channels.console.keyboard import Keyboard
    from turnwire.channels.console.screen import Screen, terminal_console
    from turnwire.channels.console.view import JsonView, LiveView, PlainView
    from turnwire.cli import hosts

    console = terminal_console()
    is_live = not (plain or json) and sys.stdout.isatty() and not console.is_dumb_terminal
    screen = Screen(console if is_live else Console(file=sys.stderr, highlight=False, color_system=None))
    view = LiveView(screen) if is_live else PlainView(sys.stdout, sys.stderr, share_a_terminal=sys.stdout.isatty())
    view = JsonView(sys.stdout, sys.stderr) if json else view
    keyboard = Keyboard(collects=False) if sys.stdin.isatty() and sys.stderr.isatty() else None
    async with hosts.opened(wanted, screen) as host:
        if not json:
            view.line(f"answered by {await _about(host)}")
        conversation = Conversation(host, view, keyboard)
        turn = host.converse(question, session_id, wanted.agent_name)
        with keyboard.listening() if keyboard else nullcontext():
            await conversation.show(turn)
    outcome = conversation.teller.outcome
    return {"completed": COMPLETED, "cancelled": CANCELLED, "interrupted": INTERRUPTED}.get(outcome or "", FAILED)


async def _about(host: "Host") -> str:
    names = await host.agents()
    return f"{host.name} ({', '.join(names)})" if names else host.name
