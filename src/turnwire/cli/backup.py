"""`turnwire backup`: a copy of a data folder, also while its server runs."""

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
    target: Annotated[Path, typer.Argument(help="The folder to make; it must not be there yet.")],
    data: Data,
) -> None:
    """Copy the logs, the documents and what extensions keep, while the server runs. The copy is a data folder."""
    _refuse_postgres()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        fail(f"{target} is there already; name a folder that is not, so that nothing is overwritten")
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite.transfer import copy_folder

    began_empty = target.exists()
    try:
        size, files, turns = copy_folder(data, target, _progress())
    except (OSError, StoreUnusableError) as error:
        if not began_empty:
            shutil.rmtree(target, ignore_errors=True)
        fail(f"nothing was kept of it: {error}")
    typer.echo(f"Copied {turns:,} turns, {files} file(s), {size / 1024**2:.1f} MiB to {target}.")
    typer.echo(f"To use it: turnwire serve --data {target}", err=True)


def _progress() -> "Progress":
    if not sys.stderr.isatty():
        return lambda name, done, whole: None

    def show(name: str, done: int, whole: int) -> None:
        share = 100 if whole == 0 else done * 100 // whole
        end = "\n" if done >= whole else ""
        sys.stderr.write(f"\r{name:<32} {share:>3} %{end}")
        sys.stderr.flush()

    return show


def _refuse_postgres() -> None:
    """PostgreSQL has tools of its own, which know its files; the address stays in the variable, for its password."""
    if os.environ.get("TURNWIRE_DATABASE_URL", "").startswith(("postgres://", "postgresql://")):
        fail(
            "the logs are in PostgreSQL; back it up with its own tools, while it runs:\n"
            '  pg_dump --format=custom --file=turnwire.dump "$TURNWIRE_DATABASE_URL"\n'
            'and back in: pg_restore --clean --if-exists --dbname="$TURNWIRE_DATABASE_URL" turnwire.dump'
        )
