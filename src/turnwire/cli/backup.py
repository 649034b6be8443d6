"""`turnwire backup`: copy a data folder, also while its server runs."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, fail

if TYPE_CHECKING:
    from turnwire.stores.sqlite.transfer import Progress


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
        size, files, turns = copy_folder(data, target, _progress())
    except (OSError, StoreUnusableError) as error:
        if not existed:
            shutil.rmtree(target, ignore_errors=True)
        fail(f"the backup failed and was removed: {error}")
    typer.echo(f"Copied {turns:,} turns, {files} file(s), {size / 1024**2:.1f} MiB to {target}.")
    typer.echo(f"Use it with: turnwire serve --data {target}", err=True)


def _progress() -> "Progress":
    if not sys.stderr.isatty():
        return lambda name, done, total: None

    def show(name: str, done: int, total: int) -> None:
        percent = 100 if total == 0 else done * 100 // total
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r{name:<32} {percent:>3} %{end}")
        sys.stderr.flush()

    return show


def _refuse_postgres() -> None:
    """Fail with the commands of PostgreSQL's own tools. They name the variable, because the URL may have a password."""
    if os.environ.get("TURNWIRE_DATABASE_URL", "").startswith(("postgres://", "postgresql://")):
        fail(
            "the logs are in PostgreSQL; back it up with its own tools, while it runs:\n"
            '  pg_dump --format=custom --file=turnwire.dump "$TURNWIRE_DATABASE_URL"\n'
            'restore it with: pg_restore --clean --if-exists --dbname="$TURNWIRE_DATABASE_URL" turnwire.dump'
        )
