"""`turnwire inspect`: when things happened in a turn, as a picture."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from turnwire.cli.client import JsonServer
from turnwire.cli.options import Data, Key, Url, fail

if TYPE_CHECKING:
    from turnwire.reporting.timeline import Timeline

_PIPED_WIDTH = 100


def inspect(
    data: Data,
    turn: Annotated[str | None, typer.Argument(help="The turn's id; the newest one without it.")] = None,
    url: Url = None,
    key: Key = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.", dir_okay=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture to this file.", dir_okay=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a turn's timeline: phases, tools, tokens and pauses. It may still be under way."""
    line = _ask(JsonServer(url, key), turn) if url is not None else _read(data, turn)
    if html is not None or svg is not None:
        from turnwire.reporting import svg_timeline

        for path, draw in ((html, svg_timeline.page), (svg, svg_timeline.svg)):
            if path is not None:
                _write(path, draw(line))
    if as_json:
        from turnwire.reporting.timeline import timeline_json

        typer.echo(json.dumps(timeline_json(line), indent=2))
    elif html is None and svg is None:
        _show(line)


def _show(line: "Timeline") -> None:
    from rich.console import Console

    from turnwire.reporting.terminal_timeline import Picture

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    Console(highlight=False, width=width).print(Picture(line))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    typer.echo(f"Wrote {path}.", err=True)


def _read(data: Path, turn: str | None) -> "Timeline":
    import asyncio

    from turnwire.core.codec import LoggedEvent, now_ms
    from turnwire.core.errors import EventsGoneError, StoreUnusableError, TurnNotFoundError
    from turnwire.core.follow import read_all
    from turnwire.reporting.timeline import timeline_of
    from turnwire.stores.sqlite import SqliteArchive

    try:
        archive = SqliteArchive(data)
    except StoreUnusableError as error:
        fail(str(error))

    async def read_log(turn_id: str) -> list[LoggedEvent]:
        return [logged async for page in read_all(archive, turn_id) for logged in page]

    try:
        newest = archive.list_turns(1) if turn is None else [archive.find_turn(turn)]
        if not newest:
            fail("there are no turns yet")
        record = newest[0]
        return timeline_of(asyncio.run(read_log(record.id)), record.started_at, now_ms())
    except TurnNotFoundError as error:
        fail(f"{error}; `turnwire turns` lists them")
    except EventsGoneError as error:
        fail(str(error))
    finally:
        archive.close()


def _ask(server: JsonServer, turn: str | None) -> "Timeline":
    import msgspec

    from turnwire.core.codec import LoggedEvent, now_ms
    from turnwire.reporting.timeline import timeline_of

    if turn is None:
        fail("name the turn that is to be read from the server")
    told = server.get(f"/v1/turns/{quote(turn, safe='')}")
    events: list[LoggedEvent] = []
    while page := server.get(f"/v1/turns/{quote(turn, safe='')}/events?wait=0&after={len(events)}").get("events"):
        for one in page:
            body = msgspec.json.encode(one["event"])
            events.append(LoggedEvent(one["position"], one["epoch"], one["at"], body))
    return timeline_of(events, _ms(told["started_at"]), now_ms())


def _ms(text: Any) -> int | None:
    from datetime import datetime

    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
