"""A copy of a data folder, as it was at one moment, while somebody else writes to it.

Every SQLite file is copied by SQLite itself, inside one read transaction, so that commits in between neither get into
the copy nor make it begin again. The turns are copied last: what is kept beside them may name a turn, and must not
name one that the copy does not have.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from turnwire.core.errors import StoreUnusableError
from turnwire.stores.sqlite.disk import BALLAST_NAME
from turnwire.stores.sqlite.schema import DATABASE_NAME, explain, open_reader

Progress = Callable[[str, int, int], None]
"""Is told the name of a file, the pages that are copied, and how many there are."""

_PAGES = 2_000
_MAGIC = b"SQLite format 3\x00"
# Files that belong to a running server, or come with a database.
_LEFT_OUT = (".lock", "-wal", "-shm", "-journal")
_LEFT_OUT_NAMES = (BALLAST_NAME, "server.json")


def copy_folder(folder: Path, target: Path, progress: Progress) -> tuple[int, int, int]:
    """Copies everything but what belongs to a running server. Returns bytes, files and turns.

    Raises StoreUnusableError, OSError.
    """
    open_reader(folder / DATABASE_NAME).close()  # There is something to copy, and this version can read it.
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_left_out(path)]
    found.sort(key=lambda path: path == folder / DATABASE_NAME)
    size = files = turns = 0
    for path in found:
        name = path.relative_to(folder)
        copy = target / name
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_database(path):
            turns = _copy_database(path, copy, str(name), progress)  # That of the last one, which has them.
        else:
            shutil.copy2(path, copy)
        copy.chmod(0o600)
        size, files = size + copy.stat().st_size, files + 1
    _make_lasting(target)
    return size, files, turns


def _is_left_out(path: Path) -> bool:
    return path.name in _LEFT_OUT_NAMES or path.name.endswith(_LEFT_OUT)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _copy_database(path: Path, copy: Path, name: str, progress: Progress) -> int:
    """Returns how many turns are in it."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as made,
        ):
            source.execute("PRAGMA wal_autocheckpoint = 0")
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # From here on it sees one moment.
            source.backup(made, pages=_PAGES, progress=lambda _, left, whole: progress(name, whole - left, whole))
            source.execute("COMMIT")
            wrong = made.execute("PRAGMA quick_check(1)").fetchone()[0]
            has_turns = made.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'turn')").fetchone()[0]
            turns = made.execute("SELECT count(*) FROM turn").fetchone()[0] if has_turns else 0
    except sqlite3.Error as error:
        raise StoreUnusableError(str(path), explain(error)) from error
    if wrong != "ok":
        raise StoreUnusableError(str(path), f"the copy is not sound: {wrong}")
    return turns


def _make_lasting(target: Path) -> None:
    """Has the disk keep it, also if the power goes now."""
    for path in [target, *target.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
