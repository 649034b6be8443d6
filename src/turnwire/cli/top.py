"""`turnwire top`: a live view of the workers and the unfinished turns."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.client import find_server, request
from turnwire.cli.options import Data, Database, Key, Url, open_archive, open_database

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from turnwire.client import ServerAddress
    from turnwire.core.log.turns import TurnRecord
    from turnwire.stores.postgres.transfer import PostgresArchive

_COLOURS = {"running": "green", "waiting": "magenta", "queued": "yellow"}
_MAX_TURNS = 1_000
_WIDE = 72
"""The columns that the whole table needs, with short ids."""
# The answer of `/v1/workers`, with the `source` it came from.
Snapshot = dict[str, Any]


def top(
    data: Data,
    database_url: Database = None,
    url: Url = None,
    key: Key = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print plain lines once; the default in a pipe.")] = False,
) -> None:
    """Watch the workers and the unfinished turns. Ctrl+C ends it."""
    if database_url is not None and url is None:
        database: PostgresArchive | None = open_database(database_url)
        server = None
    else:
        database, server = None, find_server(data, url, key)

    def snapshot() -> Snapshot:
        return _snapshot(server, data) if database is None else _read_database(database)

    try:
        if once or not sys.stdout.isatty():
            _print(snapshot())
        else:
            _watch(snapshot, interval)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        if database is not None:
            database.close()


def _watch(read: Callable[[], Snapshot], interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console, rates = Console(highlight=False), EventRates()
    snapshot = read()
    # An error leaves this block before it is printed, because the alternate screen would take the message with it.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(snapshot, rates, console.width, console.height), refresh=True)
            time.sleep(interval)
            snapshot = read()


class EventRates:
    """Events per second of each turn since the previous snapshot."""

    def __init__(self) -> None:
        self._previous: dict[str, tuple[float, int]] = {}

    def update(self, turns: list[Snapshot]) -> dict[str, float]:
        now, rates = time.monotonic(), dict[str, float]()
        for turn in turns:
            at, position = self._previous.get(turn["turn_id"], (now, turn["last_position"]))
            if now > at:
                rates[turn["turn_id"]] = (turn["last_position"] - position) / (now - at)
        self._previous = {turn["turn_id"]: (now, turn["last_position"]) for turn in turns}
        return rates


def _snapshot(server: "ServerAddress | None", data: Path) -> Snapshot:
    """Read workers and turns from the server or, without one, the unfinished turns in the data folder.

    Raise HostError.
    """
    if server is not None:
        return {"source": server.url, **request(server, "GET", "/v1/workers")}
    with closing(open_archive(data)) as archive:
        turns = _turns(archive.unfinished_turns(_MAX_TURNS))
    return {"source": f"{data} (no server is using it)", "workers": [], "turns": turns}


def _read_database(database: "PostgresArchive") -> Snapshot:
    from turnwire.core.log.codec import time_text

    workers = [
        {
            "id": worker.id,
            "address": worker.name,
            "draining": worker.draining,
            "running_turns": worker.running,
            "since": time_text(worker.started_at),
            "readers": None,
        }
        for worker in database.workers()
    ]
    return {"source": database.location, "workers": workers, "turns": _turns(database.unfinished_turns(_MAX_TURNS))}


def _turns(records: "Sequence[TurnRecord]") -> list[Snapshot]:
    from turnwire.core.log.codec import time_text

    return [
        {
            "turn_id": record.id,
            "session_id": record.session_id,
            "principal": record.principal,
            "agent": record.agent,
            "phase": record.phase,
            "worker": record.worker,
            "last_position": record.last_position,
            "created_at": time_text(record.created_at),
            "started_at": time_text(record.started_at),
        }
        for record in records
    ]


def _print(snapshot: Snapshot) -> None:
    """Print one line of tab-separated fields for each worker and turn."""
    for worker in snapshot["workers"]:
        state = "draining" if worker["draining"] else "up"
        fields = (worker["id"], worker["address"], state, worker["running_turns"], _age(worker["since"]))
        typer.echo("\t".join(("worker", *map(str, fields))))
    for turn in snapshot["turns"]:
        names = ("turn_id", "phase", "principal", "agent", "last_position")
        typer.echo("\t".join(("turn", *(str(turn[name]) for name in names), _age(turn["created_at"]))))
    if not snapshot["workers"] and not snapshot["turns"]:
        typer.echo(f"There are no unfinished turns: {snapshot['source']}", err=True)


def _screen(snapshot: Snapshot, rates: EventRates, width: int, height: int) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    speeds = rates.update(snapshot["turns"])
    counts = {phase: sum(turn["phase"] == phase for turn in snapshot["turns"]) for phase in _COLOURS}
    head = Text.assemble(("turnwire top ", "bold"), (snapshot["source"], "dim"), no_wrap=True, overflow="ellipsis")
    summary = Text("   ").join(Text(f"{count} {phase}", _COLOURS[phase]) for phase, count in counts.items())
    summary.append(f"   {sum(speeds.values()):.0f} events/s", "dim")
    # A narrow terminal gets the columns that say most.
    is_wide = width >= _WIDE
    workers = _table(("worker", "address", "state", "turns", "readers", "up"), ("state", "turns", "up"), is_wide)
    for worker in snapshot["workers"]:
        state = Text("draining", "yellow") if worker["draining"] else Text("up", "green")
        readers = "" if worker["readers"] is None else str(worker["readers"])
        running, age = str(worker["running_turns"]), _age(worker["since"])
        more_cells = (Text(worker["address"]), state, running, readers, age) if is_wide else (state, running, age)
        workers.add_row(_short(worker["id"]), *more_cells)
    room = max(height - len(snapshot["workers"]) - 7, 3)
    names = ("turn", "state", "for", "principal", "agent", "events", "/s", "worker")
    turns = _table(names, ("state", "for", "agent", "events"), is_wide)
    for turn in snapshot["turns"][:room]:
        speed = speeds.get(turn["turn_id"])
        state, age = Text(turn["phase"], _COLOURS.get(turn["phase"], "")), _age(turn["created_at"])
        agent, events = Text(turn["agent"]), str(turn["last_position"])
        if is_wide:
            rate = "" if speed is None else f"{speed:.0f}"
            owner, by = Text(turn["principal"]), _short(turn["worker"] or "")
            turns.add_row(_short(turn["turn_id"], width - _WIDE), state, age, owner, agent, events, rate, by)
        else:
            turns.add_row(_short(turn["turn_id"]), state, age, agent, events)
    more = len(snapshot["turns"]) - room
    rest = [Text(f"and {more} more", "dim")] if more > 0 else []
    parts = [workers, Text()] if snapshot["workers"] else []
    return Group(head, summary, Text(), *parts, turns, *rest)


def _table(columns: Sequence[str], narrow: Sequence[str], is_wide: bool) -> "Table":
    """Return an empty table with all columns, or only with the first and the `narrow` ones."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", expand=is_wide)
    for name in columns:
        if is_wide or name in (columns[0], *narrow):
            justify = "right" if name in ("events", "/s", "for") else "left"
            table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _short(name: str, room: int = 0) -> str:
    # Ids that were made at the same moment differ at the end.
    return name if len(name) <= max(room, 8) else f"…{name[-7:]}"


def _age(text: str | None) -> str:
    if text is None:
        return ""
    seconds = max((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds(), 0)
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"
    return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:02.0f}m"
