"""`turnwire move`: from the folder of one process to a database that many can use."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwire.cli.options import Data, fail


def move(
    data: Data,
    database_url: Annotated[
        str, typer.Option(envvar="TURNWIRE_DATABASE_URL", show_envvar=True, help="The PostgreSQL database to move to.")
    ],
) -> None:
    """Copy all sessions, turns, logs and keys of a data folder to PostgreSQL. Started again, it goes on."""
    from turnwire.core.errors import TurnwireError

    try:
        moved = asyncio.run(_move(data, database_url))
    except TurnwireError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("broken off; nothing is lost, start it again to go on")
    known = f" ({moved.there_before} were there already)" if moved.there_before else ""
    typer.echo(f"Moved {moved.turns} turns{known}; every log was read back and is the same.")
    typer.echo("The folder is as it was. Start the server with --database-url from now on.")


async def _move(data: Path, url: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from turnwire.assembly import build_move
    from turnwire.stores.transfer import move as move_all

    source, target = build_move(data, url)
    await source.open()
    try:
        await target.open()
        try:
            total = await source.count_turns()
            columns = (TextColumn("moving turns"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task("", total=total)
                return await move_all(
                    source,
                    target,
                    lambda moved: progress.update(task, completed=moved.turns + moved.there_before),
                )
        finally:
            await target.close()
    finally:
        await source.close()
