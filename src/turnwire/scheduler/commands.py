"""`turnwire schedules`: messages that a running server sends at set times."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from turnwire.cli.client import needed_server, request
from turnwire.cli.commands import OPERATE, Commands
from turnwire.cli.options import Data, HelpfulCommand, HelpfulGroup, Key, Url, complete_id, fail, print_table

app = typer.Typer(help="Send messages at set times.", no_args_is_help=True, cls=HelpfulGroup)

_ScheduleId = Annotated[str, typer.Argument(help="The schedule's id, or its beginning or end.")]


def add_commands(commands: Commands) -> None:
    commands.add_group("schedules", app, OPERATE)


@app.command(
    cls=HelpfulCommand,
    epilog="[bold]Examples[/]\n"
    "  turnwire schedules add 'What is new?' --cron '0 9 * * mon-fri' --timezone Europe/Berlin\n"
    "  turnwire schedules add 'Is the build green?' --every 3600 --channel telegram --user 7",
)
def add(
    message: Annotated[str, typer.Argument(help="The message to the agent.")],
    data: Data,
    url: Url = None,
    key: Key = None,
    cron: Annotated[str | None, typer.Option(help="A cron expression, such as '0 9 * * mon-fri'.")] = None,
    every: Annotated[int | None, typer.Option(metavar="<seconds>", help="An interval in seconds.")] = None,
    at: Annotated[str | None, typer.Option(metavar="<time>", help="One time, such as 2027-01-31T09:00.")] = None,
    timezone: Annotated[str, typer.Option(help="The time zone of --cron.")] = "UTC",
    agent: Annotated[str | None, typer.Option(help="The agent that answers.")] = None,
    session: Annotated[
        str | None, typer.Option(help="The session to go on with; by default each run begins one.")
    ] = None,
    channel: Annotated[str | None, typer.Option(help="The channel that the answer goes to, with --user.")] = None,
    user: Annotated[str | None, typer.Option(help="The user of the channel.")] = None,
    skip_missed: Annotated[bool, typer.Option("--skip-missed", help="Do not make up for missed times.")] = False,
) -> None:
    """Send a message at the times of --cron, --every or --at."""
    body: dict[str, Any] = {
        "message": message,
        "cron": cron,
        "every": every,
        "at": _milliseconds(at) if at else None,
        "timezone": timezone,
        "agent": agent,
        "session_id": session,
        "channel": channel,
        "user_id": user,
        "missed": "skip" if skip_missed else "run_once",
    }
    added = _call(data, url, key, "POST", "/v1/schedules", body)
    typer.echo(added["id"])
    typer.secho(f"It runs at {added['next_at']}." if added["next_at"] else "Its time is over.", err=True)


@app.command("list", cls=HelpfulCommand)
def list_schedules(data: Data, url: Url = None, key: Key = None) -> None:
    """List the schedules with their next and last runs. In a pipe, fields are separated by tabs."""
    found = _call(data, url, key, "GET", "/v1/schedules")["schedules"]
    if not found:
        typer.echo("There are no schedules. Add one with: turnwire schedules add MESSAGE --cron ...", err=True)
        return
    rows = [[each["id"], _times(each), _next(each), _last(each), each["name"] or each["message"]] for each in found]
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    print_table(("schedule", "times", "next", "last", "message"), [[*row] for row in rows], "message")


@app.command(cls=HelpfulCommand)
def remove(schedule: _ScheduleId, data: Data, url: Url = None, key: Key = None) -> None:
    """Remove a schedule. Its turns stay."""
    schedule_id = _complete(data, url, key, schedule)
    _call(data, url, key, "DELETE", f"/v1/schedules/{quote(schedule_id, safe='')}")
    typer.echo(f"Schedule {schedule_id} is removed.")


@app.command(cls=HelpfulCommand)
def pause(schedule: _ScheduleId, data: Data, url: Url = None, key: Key = None) -> None:
    """Pause a schedule."""
    _pause(data, url, key, schedule, is_paused=True)


@app.command(cls=HelpfulCommand)
def resume(schedule: _ScheduleId, data: Data, url: Url = None, key: Key = None) -> None:
    """Go on with a paused schedule."""
    _pause(data, url, key, schedule, is_paused=False)


def _pause(data: Path, url: str | None, key: str | None, schedule: str, *, is_paused: bool) -> None:
    path = f"/v1/schedules/{quote(_complete(data, url, key, schedule), safe='')}"
    changed = _call(data, url, key, "PATCH", path, {"paused": is_paused})
    state = "paused" if is_paused else f"runs at {changed['next_at'] or 'no time any more'}"
    typer.echo(f"Schedule {changed['id']} {'is ' if is_paused else ''}{state}.")


def _complete(data: Path, url: str | None, key: str | None, part: str) -> str:
    return complete_id(part, [each["id"] for each in _call(data, url, key, "GET", "/v1/schedules")["schedules"]])


def _milliseconds(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        fail(f"--at: {text!r} is not a date and time; write it like 2027-01-31T09:00")


def _times(schedule: dict[str, Any]) -> str:
    if schedule["cron"]:
        return f"{schedule['cron']} ({schedule['timezone']})"
    return f"every {schedule['every']} s" if schedule["every"] else "once"


def _next(schedule: dict[str, Any]) -> str:
    return "paused" if schedule["paused"] else schedule["next_at"] or "-"


def _last(schedule: dict[str, Any]) -> str:
    run = schedule["last_run"]
    return "-" if run is None else run["error"] or run["due"]


def _call(
    data: Path, url: str | None, key: str | None, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    return request(needed_server(data, url, key), method, path, body)
