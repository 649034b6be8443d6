"""`turnwire turns`, `tail`, `inspect` and `fork`: list, follow, show and branch turns."""

import asyncio
import json
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from turnwire.cli.client import connected, needed_server
from turnwire.cli.options import (
    ID_LENGTH,
    Data,
    Database,
    Key,
    Url,
    complete_id,
    fail,
    load_settings,
    open_archive,
    open_database,
    print_table,
    terminal_width,
    without_ellipsis,
)

if TYPE_CHECKING:
    from turnwire.cli.options import Archive
    from turnwire.client import AsyncClient
    from turnwire.core.log.codec import LoggedEvent
    from turnwire.core.log.turns import TurnRecord
    from turnwire.reporting.timeline import Cost, Timeline
    from turnwire.settings import ModelPrice
    from turnwire.stores.sqlite import SqliteArchive

    Prices = dict[str, ModelPrice]

TurnId = Annotated[
    str | None,
    typer.Argument(
        help="The turn's id, or its beginning or end; by default the newest turn.", callback=without_ellipsis
    ),
]
_PIPED_WIDTH = 100
_WIDE, _WIDEST = 72, 108
"""The columns that all facts about a turn need, with the end of its id and with the whole id."""
_COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "interrupted": "magenta"}


def turns(
    data: Data,
    database_url: Database = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The number of turns to list.")] = 20,
) -> None:
    """List the newest turns, running or ended."""
    with _opened_logs(data, database_url) as archive:
        records = archive.newest_turns(limit)
    if not sys.stdout.isatty():
        for record in records:
            outcome = record.outcome or record.phase
            typer.echo(f"{record.id}\t{outcome}\t{record.last_position}\t{record.agent}\t{_line(record.message)}")
        return
    if not records:
        typer.secho("No turns yet.", dim=True)
        return
    # A narrow terminal gets the end of the id, which is enough to name the turn, and fewer columns.
    width = terminal_width()
    columns = (
        ("turn", "began", "state", "events", "agent", "message") if width >= _WIDE else ("turn", "state", "message")
    )
    rows = [_row(record, width) for record in records]
    print_table(columns, [[row[column] for column in columns] for row in rows], "message")


def _row(record: "TurnRecord", width: int) -> dict[str, str | tuple[str, str]]:
    outcome = record.outcome or record.phase
    return {
        "turn": record.id if width >= _WIDEST else f"…{record.id[-7:]}",
        "began": datetime.fromtimestamp(record.created_at / 1000).strftime("%m-%d %H:%M:%S"),
        "state": (outcome, _COLOURS.get(outcome, "cyan")),
        "events": str(record.last_position),
        "agent": _line(record.agent, 16),
        "message": _line(record.message, width),
    }


def tail(
    data: Data,
    turn: TurnId = None,
    database_url: Database = None,
    after: Annotated[int, typer.Option(min=0, help="Start after this position.")] = 0,
    wire: Annotated[str | None, typer.Option(help="Print the bytes of this wire, e.g. [bold]sse_chat[/].")] = None,
) -> None:
    """Show a turn's log and follow it until it ends. In a pipe, each line is one JSON object."""
    show = _printer(wire)
    with _opened_logs(data, database_url) as archive:
        asyncio.run(_follow(archive, find_turn(archive, turn).id, after, show))


def fork(
    data: Data,
    turn: Annotated[str, typer.Argument(help="The turn's id, or its beginning or end.", callback=without_ellipsis)],
    position: Annotated[int, typer.Option("--at", min=1, help="The last position that the new turn shares.")],
    message: Annotated[str | None, typer.Option(help="The message to go on with.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that goes on.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to go on with.")] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Start a turn that shares another one's log up to a position, and print its id. It needs a running server."""
    server = needed_server(data, url, key)

    async def send() -> str:
        async with connected(server) as client:
            turn_id = await known_turn_id(client, turn)
            return (await client.fork(turn_id, position, message=message, agent=agent, model=model)).id

    typer.echo(asyncio.run(send()))


def inspect(
    data: Data,
    turn: TurnId = None,
    database_url: Database = None,
    url: Url = None,
    key: Key = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page to this file.", dir_okay=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Write an SVG picture to this file.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a turn's timeline: phases, tools, tokens and pauses. The turn may still be running."""
    if url is not None:
        timeline, prices = asyncio.run(_fetch(url, key, turn))
    else:
        timeline, prices = _read_timeline(data, turn, database_url)
    from turnwire.reporting.timeline import cost_of

    cost = cost_of(timeline, prices)
    if html is not None or svg is not None:
        from turnwire.reporting import svg_timeline

        for path, draw in ((html, svg_timeline.page), (svg, svg_timeline.svg)):
            if path is not None:
                _write(path, draw(timeline))
    if as_json:
        from turnwire.reporting.timeline import timeline_json

        typer.echo(json.dumps(timeline_json(timeline, cost), indent=2))
    elif html is None and svg is None:
        _print_timeline(timeline, cost)


@contextmanager
def opened_archive(data: Path) -> "Generator[SqliteArchive]":
    """Open the logs of a data folder."""
    with closing(open_archive(data)) as archive, _explained():
        yield archive


@contextmanager
def _opened_logs(data: Path, database_url: str | None) -> "Generator[Archive]":
    """Open the logs of a data folder or, with its URL, of a database."""
    opened = open_archive(data) if database_url is None else open_database(database_url)
    with closing(opened) as archive, _explained():
        yield archive


@contextmanager
def _explained() -> "Generator[None]":
    from turnwire.core.errors import TurnNotFoundError

    try:
        yield
    except TurnNotFoundError as error:
        fail(f"{error}; `turnwire turns` lists them")


def find_turn(archive: "Archive", turn_id: str | None) -> "TurnRecord":
    """Return the turn whose id begins or ends with `turn_id`, by default the newest. Raise TurnNotFoundError."""
    if turn_id is not None:
        return archive.turn(complete_id(turn_id, archive.match_ids(turn_id)))
    newest = archive.newest_turns(1)
    if not newest:
        fail("there are no turns yet")
    return newest[0]


# The log.


async def _follow(archive: "Archive", turn_id: str, after: int, show: "Callable[[LoggedEvent], None]") -> None:
    from turnwire.core.log.follow import follow

    async for events in follow(archive, turn_id, after):
        for logged in events:
            show(logged)
        sys.stdout.flush()


def _printer(wire: str | None) -> "Callable[[LoggedEvent], None]":
    if wire is not None:
        from turnwire.assembly import build_wires

        wires = build_wires()
        if wire not in wires:
            fail(f"there is no wire {wire!r}; choose one of {', '.join(wires)}")
        frame = wires[wire]({}).encoder().frame

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

    from turnwire.core.log.events import TokenEvent

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


# The timeline.


def _print_timeline(timeline: "Timeline", cost: "Cost | None") -> None:
    from rich.console import Console

    from turnwire.reporting.terminal_timeline import TimelineView

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    Console(highlight=False, width=width).print(TimelineView(timeline, cost))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    typer.echo(f"Wrote {path}.", err=True)


def _read_timeline(data: Path, turn_id: str | None, database_url: str | None) -> "tuple[Timeline, Prices]":
    from turnwire.core.log.codec import LoggedEvent, now_ms
    from turnwire.core.log.follow import read_all
    from turnwire.reporting.timeline import timeline_of

    with _opened_logs(data, database_url) as archive:

        async def read_log(turn_id: str) -> list[LoggedEvent]:
            return [logged async for page in read_all(archive, turn_id) for logged in page]

        record = find_turn(archive, turn_id)
        timeline = timeline_of(asyncio.run(read_log(record.id)), record.started_at, now_ms())
    return timeline, load_settings(data=data).model_prices


async def _fetch(url: str, key: str | None, turn_id: str | None) -> "tuple[Timeline, Prices]":
    import msgspec

    from turnwire.client import ServerAddress
    from turnwire.core.log.codec import LoggedEvent, now_ms
    from turnwire.reporting.timeline import timeline_of
    from turnwire.settings import ModelPrice

    events: list[LoggedEvent] = []
    async with connected(ServerAddress(url, key)) as client:
        path = f"/v1/turns/{quote(await known_turn_id(client, turn_id), safe='')}"
        turn = await client.request("GET", path)
        while page := (await client.request("GET", f"{path}/events?wait=0&after={len(events)}")).get("events"):
            for entry in page:
                body = msgspec.json.encode(entry["event"])
                events.append(LoggedEvent(entry["position"], entry["epoch"], entry["at"], body))
        prices = (await client.request("GET", "/v1/prices"))["prices"]
    started_at: str | None = turn["started_at"]
    started_ms = None if started_at is None else round(datetime.fromisoformat(started_at).timestamp() * 1000)
    return timeline_of(events, started_ms, now_ms()), {model: ModelPrice(**price) for model, price in prices.items()}


async def known_turn_id(client: "AsyncClient", part: str | None) -> str:
    """Return the id of the newest turn, or of the recent turn whose id begins or ends with `part`."""
    if part is not None and len(part) >= ID_LENGTH:
        return part
    recent = (await client.request("GET", f"/v1/turns?limit={1 if part is None else 200}"))["turns"]
    ids = [turn["turn_id"] for turn in recent]
    if part is not None:
        return complete_id(part, ids)
    return ids[0] if ids else fail("there are no turns yet")
