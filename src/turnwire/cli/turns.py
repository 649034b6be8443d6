"""`turnwire turns` and `turnwire tail`: list turns and follow a log from another terminal."""

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.options import Data, fail, open_archive

if TYPE_CHECKING:
    from turnwire.core.codec import LoggedEvent
    from turnwire.stores.sqlite import SqliteArchive

_COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "interrupted": "magenta"}


def turns(
    data: Data,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The number of turns to list.")] = 20,
) -> None:
    """List the newest turns, running or ended."""
    archive = open_archive(data)
    records = archive.list_turns(limit)
    if not sys.stdout.isatty():
        for record in records:
            outcome = record.outcome or record.phase
            typer.echo(f"{record.id}\t{outcome}\t{record.last_position}\t{record.agent}\t{_line(record.message)}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("turn", "began", "state", "events", "agent", "message", box=None, header_style="dim")
    for record in records:
        outcome = record.outcome or record.phase
        began = datetime.fromtimestamp(record.created_at / 1000).strftime("%m-%d %H:%M:%S")
        state = f"[{_COLOURS.get(outcome, 'cyan')}]{outcome}[/]"
        table.add_row(record.id, began, state, str(record.last_position), record.agent, _line(record.message, 40))
    Console().print(table if records else "[dim]No turns yet.[/]")


def tail(
    data: Data,
    turn: Annotated[str | None, typer.Argument(help="The turn's id; by default the newest turn.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Start after this position.")] = 0,
    wire: Annotated[str | None, typer.Option(help="Print the bytes of this wire, e.g. [bold]sse_chat[/].")] = None,
) -> None:
    """Show a turn's log and follow it until it ends. In a pipe, each line is one JSON object."""
    archive = open_archive(data)
    if turn is None:
        newest = archive.list_turns(1)
        if not newest:
            fail("there are no turns yet")
        turn = newest[0].id
    try:
        asyncio.run(_follow(archive, turn, after, _printer(wire)))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _follow(archive: "SqliteArchive", turn_id: str, after: int, show: "Callable[[LoggedEvent], None]") -> None:
    from turnwire.core.errors import EventsGoneError, TurnNotFoundError
    from turnwire.core.follow import follow

    try:
        async for events in follow(archive, turn_id, after):
            for logged in events:
                show(logged)
            sys.stdout.flush()
    except TurnNotFoundError as error:
        fail(f"{error}; `turnwire turns` lists them")
    except EventsGoneError as error:
        fail(str(error))


def _printer(wire: str | None) -> "Callable[[LoggedEvent], None]":
    if wire is not None:
        from turnwire.assembly import WIRES

        if wire not in WIRES:
            fail(f"there is no wire {wire!r}; choose one of {', '.join(WIRES)}")
        frame = WIRES[wire]({}).encoder().frame

        def write(logged: "LoggedEvent") -> None:
            sys.stdout.buffer.write(frame(logged))

        return write
    return _pretty_printer() if sys.stdout.isatty() else _json_line


def _json_line(logged: "LoggedEvent") -> None:
    sys.stdout.write(f"{logged.body.decode('ascii')}\n")


def _pretty_printer() -> "Callable[[LoggedEvent], None]":
    """Return a printer that joins tokens to text and prints every other event on its own line."""
    from rich.console import Console
    from rich.text import Text

    from turnwire.core.events import TokenEvent

    console = Console(highlight=False)
    in_text = False

    def show(logged: "LoggedEvent") -> None:
        nonlocal in_text
        event = logged.event
        if isinstance(event, TokenEvent):
            console.print(Text(event.content), end="", soft_wrap=True)
            in_text = True
            return
        if in_text:
            console.print()
            in_text = False
        kind = str(type(event).__struct_config__.tag)
        line = Text.assemble((f"{logged.position:>5} ", "dim"), (f"{kind:<14} ", "cyan"), (_fields(event), ""))
        console.print(line, no_wrap=True, overflow="ellipsis")

    return show


def _fields(event: Any) -> str:
    """Return the event's fields that have a value, on one line."""
    return "  ".join(
        f"{name}={_line(str(value), 60)}"
        for name in event.__struct_fields__
        if (value := getattr(event, name)) not in (None, (), "") and name not in ("session_id", "agent_path")
    )


def _line(text: str, width: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
