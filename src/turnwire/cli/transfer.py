"""`turnwire backup` and `turnwire move`: copy a data folder to another folder, or into PostgreSQL."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, fail, load_settings, progress_bar
from turnwire.plugins import installed

if TYPE_CHECKING:
    from turnwire.stores.transfer import Moved


def backup(
    target: Annotated[Path, typer.Argument(help="The folder to create; it must not exist, or be empty.")],
    data: Data,
) -> None:
    """Copy the logs, the documents and the extensions' files, also while the server runs. The copy is a data folder."""
    _refuse_postgres()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        fail(f"{target} exists already; name a new folder, so that nothing is overwritten")
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite.transfer import copy_folder

    existed = target.exists()
    try:
        with progress_bar("Copying pages") as show:
            size, files, turns = copy_folder(data, target, lambda _, done, total: show(done, total))
    except (OSError, StoreUnusableError) as error:
        _remove_copy(target, existed)
        fail(f"the backup failed and was removed: {error}")
    except KeyboardInterrupt:
        _remove_copy(target, existed)
        fail("the backup was stopped and was removed")
    typer.echo(f"Copied {turns:,} turns, {files} file(s), {size / 1024**2:.1f} MiB to {target}.")
    typer.echo(f"Use it with: turnwire serve --data {target}", err=True)


def _refuse_postgres() -> None:
    """Fail with the commands of PostgreSQL's own tools. They name the variable, because the URL may have a password."""
    if os.environ.get("TURNWIRE_DATABASE_URL", "").startswith(("postgres://", "postgresql://")):
        fail(
            "the logs are in PostgreSQL; back it up with its own tools, while it runs:\n"
            '  pg_dump --format=custom --file=turnwire.dump "$TURNWIRE_DATABASE_URL"\n'
            'restore it with: pg_restore --clean --if-exists --dbname="$TURNWIRE_DATABASE_URL" turnwire.dump'
        )


def _remove_copy(target: Path, existed: bool) -> None:
    """Remove an unfinished copy, which would look like a data folder; a folder that was there before stays, empty."""
    if not existed:
        shutil.rmtree(target, ignore_errors=True)
        return
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def move(
    data: Data,
    database_url: Annotated[
        str, typer.Option(envvar="TURNWIRE_DATABASE_URL", show_envvar=True, help="The PostgreSQL database to copy to.")
    ],
) -> None:
    """Copy everything in a data folder to PostgreSQL: logs, keys, uploads, channels. Run it again to resume."""
    try:
        moved = asyncio.run(_move(data, database_url))
        records = _move_records(data, database_url)
    except sqlite3.Error as error:
        fail(f"a file in {data} cannot be read: {error}")
    except KeyboardInterrupt:
        fail("stopped; nothing is lost, run it again to resume")
    skipped = f" ({moved.there_before} were there already)" if moved.there_before else ""
    typer.echo(f"Moved {moved.turns} turns{skipped}; every log was read back and is the same.")
    if moved.plugin_rows:
        typer.echo(f"Moved {moved.plugin_rows:,} records of channels.")
    for name, count in records.items():
        typer.echo(f"Moved {count:,} records of {name}.")
    typer.echo("The folder is unchanged. From now on, start the server with --database-url.")


def _move_records(data: Path, url: str) -> dict[str, int]:
    """Copy what plugins keep in files of the data folder. Return the number of records by the plugin's name."""
    from turnwire.assembly import open_shared

    with closing(open_shared(load_settings(data=data, database_url=url))) as database:
        database.open()
        moved = {
            plugin.name: plugin.load(plugin.move)(data, database)
            for plugin in installed().values()
            if plugin.move is not None
        }
    return {name: count for name, count in moved.items() if count}


async def _move(data: Path, url: str) -> "Moved":
    from turnwire.assembly import build_move
    from turnwire.stores.transfer import move as move_all

    source, target = build_move(load_settings(data=data, database_url=url))
    await source.open()
    try:
        await target.open()
        try:
            total = await source.count_turns()
            with progress_bar("Moving turns") as show:
                return await move_all(source, target, lambda moved: show(moved.turns + moved.there_before, total))
        finally:
            await target.close()
    finally:
        await source.close()
