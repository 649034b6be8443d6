"""`turnwire move`: copy a data folder into a PostgreSQL database, which many processes can share."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwire.cli.options import Data, fail


def move(
    data: Data,
    database_url: Annotated[
        str, typer.Option(envvar="TURNWIRE_DATABASE_URL", show_envvar=True, help="The PostgreSQL database to copy to.")
    ],
) -> None:
    """Copy all sessions, turns, logs and keys of a data folder to PostgreSQL. Run it again to resume."""
    from turnwire.core.errors import TurnwireError

    try:
        moved = asyncio.run(_move(data, database_url))
    except TurnwireError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("stopped; nothing is lost, run it again to resume")
    skipped = f" ({moved.there_before} were there already)" if moved.there_before else ""
    typer.echo(f"Moved {moved.turns} turns{skipped}; every log was read back and is the same.")
    typer.echo("The folder is unchanged. From now on, start the server with --database-url.")


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
