"""`turnwire inspect`: the timeline of a turn, as text, picture, page or JSON."""

import asyncio
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from turnwire.cli.options import Data, Key, Url, fail, open_archive

if TYPE_CHECKING:
    from turnwire.reporting.timeline import Timeline

_PIPED_WIDTH = 100


def inspect(
    data: Data,
    turn: Annotated[str | None, typer.Argument(help="The turn's id; by default the newest turn.")] = None,
    url: Url = None,
    key: Key = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page to this file.", dir_okay=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Write an SVG picture to this file.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a turn's timeline: phases, tools, tokens and pauses. The turn may still be running."""
    timeline = _fetch_timeline(url, key, turn) if url is not None else _read_timeline(data, turn)
    if html is not None or svg is not None:
        from turnwire.reporting import svg_timeline

        for path, draw in ((html, svg_timeline.page), (svg, svg_timeline.svg)):
            if path is not None:
                _write(path, draw(timeline))
    if as_json:
        from turnwire.reporting.timeline import timeline_json

        typer.echo(json.dumps(timeline_json(timeline), indent=2))
    elif html is None and svg is None:
        _print(timeline)


def _print(timeline: "Timeline") -> None:
    from rich.console import Console

    from turnwire.reporting.terminal_timeline import TimelineView

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    Console(highlight=False, width=width).print(TimelineView(timeline))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    typer.echo(f"Wrote {path}.", err=True)


def _read_timeline(data: Path, turn: str | None) -> "Timeline":
    from turnwire.core.codec import LoggedEvent, now_ms
    from turnwire.core.errors import EventsGoneError, TurnNotFoundError
    from turnwire.core.follow import read_all
    from turnwire.reporting.timeline import timeline_of

    archive = open_archive(data)

    async def read_log(turn_id: str) -> list[LoggedEvent]:
        return [logged async for page in read_all(archive, turn_id) for logged in page]

    try:
        records = archive.list_turns(1) if turn is None else [archive.find_turn(turn)]
        if not records:
            fail("there are no turns yet")
        return timeline_of(asyncio.run(read_log(records[0].id)), records[0].started_at, now_ms())
    except TurnNotFoundError as error:
        fail(f"{error}; `turnwire turns` lists them")
    except EventsGoneError as error:
        fail(str(error))
    finally:
        archive.close()


def _fetch_timeline(url: str, key: str | None, turn: str | None) -> "Timeline":
    from turnwire.channels.console.client import HostError

    if turn is None:
        fail("--url needs the id of a turn")
    try:
        return asyncio.run(_fetch(url, key, f"/v1/turns/{quote(turn, safe='')}"))
    except HostError as error:
        fail(str(error))


async def _fetch(url: str, key: str | None, path: str) -> "Timeline":
    import msgspec

    from turnwire.channels.console.client import ServerAddress, ServerClient
    from turnwire.core.codec import LoggedEvent, now_ms
    from turnwire.reporting.timeline import timeline_of

    events: list[LoggedEvent] = []
    async with ServerClient(ServerAddress(url, key)) as client:
        turn = await client.call("GET", path)
        while page := (await client.call("GET", f"{path}/events?wait=0&after={len(events)}")).get("events"):
            for entry in page:
                body = msgspec.json.encode(entry["event"])
                events.append(LoggedEvent(entry["position"], entry["epoch"], entry["at"], body))
    started_at: str | None = turn["started_at"]
    started_ms = None if started_at is None else round(datetime.fromisoformat(started_at).timestamp() * 1000)
    return timeline_of(events, started_ms, now_ms())
