"""`turnwire top`: the workers and the turns under way, as they are now."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.client import JsonServer, asked_server
from turnwire.cli.options import Data, Key, Url, fail

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLOURS = {"running": "green", "waiting": "magenta", "queued": "yellow"}
Told = dict[str, Any]


def top(
    data: Data,
    url: Url = None,
    key: Key = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and print it plainly; so when it is piped.")] = False,
) -> None:
    """Watch the workers and the turns under way. Leave with Ctrl+C."""
    server = asked_server(url, key, data)
    rates = Rates()
    if once or not sys.stdout.isatty():
        _print(_look(server, data))
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(_look(server, data), rates, console.height), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


class Rates:
    """How fast turns write: events a second since the look before."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def of(self, turns: list[Told]) -> dict[str, float]:
        now, rates = time.monotonic(), dict[str, float]()
        for turn in turns:
            at, position = self._seen.get(turn["turn_id"], (now, turn["last_position"]))
            if now > at:
                rates[turn["turn_id"]] = (turn["last_position"] - position) / (now - at)
        self._seen = {turn["turn_id"]: (now, turn["last_position"]) for turn in turns}
        return rates


def _look(server: JsonServer | None, data: Path) -> Told:
    """What there is: from the server, or, if there is none, from what it left in the folder."""
    if server is not None:
        return {"source": server.url, **server.get("/v1/workers")}
    from turnwire.core.codec import time_text
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite import SqliteArchive

    try:
        archive = SqliteArchive(data)
    except StoreUnusableError as error:
        fail(str(error))
    try:
        records = archive.list_unfinished(1_000)
    finally:
        archive.close()
    turns = [
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
    return {"source": f"{data} (no server is using it)", "workers": [], "turns": turns}


def _print(told: Told) -> None:
    """One line each, with tabs between: for programs and for pipes."""
    for worker in told["workers"]:
        state = "draining" if worker["draining"] else "up"
        fields = (worker["id"], worker["address"], state, worker["running_turns"], _age(worker["since"]))
        typer.echo("\t".join(("worker", *map(str, fields))))
    for turn in told["turns"]:
        names = ("turn_id", "phase", "principal", "agent", "last_position")
        typer.echo("\t".join(("turn", *(str(turn[name]) for name in names), _age(turn["created_at"]))))
    if not told["workers"] and not told["turns"]:
        typer.echo(f"Nothing is under way: {told['source']}", err=True)


def _screen(told: Told, rates: Rates, height: int) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    speeds = rates.of(told["turns"])
    counts = {phase: sum(turn["phase"] == phase for turn in told["turns"]) for phase in _COLOURS}
    head = Text.assemble(("turnwire top ", "bold"), (told["source"], "dim"), no_wrap=True, overflow="ellipsis")
    summary = Text("   ").join(Text(f"{count} {phase}", _COLOURS[phase]) for phase, count in counts.items())
    summary.append(f"   {sum(speeds.values()):.0f} events/s", "dim")
    workers = Table("worker", "address", "state", "turns", "readers", "up", box=None, header_style="dim", expand=True)
    for worker in told["workers"]:
        state = Text("draining", "yellow") if worker["draining"] else Text("up", "green")
        readers = "" if worker["readers"] is None else str(worker["readers"])
        running = str(worker["running_turns"])
        workers.add_row(_short(worker["id"]), worker["address"], state, running, readers, _age(worker["since"]))
    room = max(height - len(told["workers"]) - 7, 3)
    turns = Table(box=None, header_style="dim", expand=True)
    for name in ("turn", "state", "for", "principal", "agent", "events", "/s", "worker"):
        turns.add_column(
            name, justify="right" if name in ("events", "/s", "for") else "left", no_wrap=True, overflow="ellipsis"
        )
    for turn in told["turns"][:room]:
        speed = speeds.get(turn["turn_id"])
        turns.add_row(
            turn["turn_id"],
            Text(turn["phase"], _COLOURS.get(turn["phase"], "")),
            _age(turn["created_at"]),
            turn["principal"],
            turn["agent"],
            str(turn["last_position"]),
            "" if speed is None else f"{speed:.0f}",
            _short(turn["worker"] or ""),
        )
    more = len(told["turns"]) - room
    rest = [Text(f"and {more} more", "dim")] if more > 0 else []
    parts = [workers, Text()] if told["workers"] else []
    return Group(head, summary, Text(), *parts, turns, *rest)


def _short(worker: str) -> str:
    # The end of an id is what tells two of the same moment apart.
    return worker if len(worker) <= 8 else f"…{worker[-7:]}"


def _age(text: str | None) -> str:
    if text is None:
        return ""
    seconds = max((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds(), 0)
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"
    return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:02.0f}m"
