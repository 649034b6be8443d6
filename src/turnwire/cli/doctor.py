"""`turnwire doctor`: checks what it stands on and says how to mend it."""

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import typer

from turnwire.cli.options import Data

Verdict = tuple[Literal["ok", "note", "bad"], str]
_MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}
_ROOM_BYTES = 64 * 1024 * 1024


def doctor(data: Data) -> None:
    """Check Python, SQLite, the data folder, the disk and the running server."""
    checks: list[tuple[str, Callable[[], Verdict]]] = [
        ("Python", _python),
        ("fast server", _speedups),
        ("SQLite", _sqlite),
        ("open files", _open_files),
        ("data folder", lambda: _folder(data)),
        ("free disk", lambda: _disk(data)),
        ("commit time", lambda: _commit_time(data)),
        ("database", lambda: _database(data)),
        ("documents", lambda: _documents(data)),
        ("model", _model),
        ("server", lambda: _server(data)),
    ]
    bad = 0
    for name, check in checks:
        verdict, text = check()
        mark, colour = _MARKS[verdict]
        bad += verdict == "bad"
        typer.echo(f"{typer.style(mark, fg=colour)} {name:<12} {text}")
    if bad:
        raise typer.Exit(1)


def _python() -> Verdict:
    version = ".".join(map(str, sys.version_info[:3]))
    return ("ok", version) if sys.version_info >= (3, 11) else ("bad", f"{version}; Turnwire needs 3.11 or newer")


def _speedups() -> Verdict:
    missing = [name for name in ("uvloop", "httptools") if find_spec(name) is None]
    if missing:
        return (
            "note",
            f"{', '.join(missing)} missing, streams cost about 1.6 times as much; pip install {' '.join(missing)}",
        )
    return "ok", "uvloop and httptools"


def _sqlite() -> Verdict:
    if sqlite3.sqlite_version_info < (3, 35):
        return "bad", f"{sqlite3.sqlite_version}; 3.35 or newer is needed, use a newer Python build"
    return "ok", sqlite3.sqlite_version


def _open_files() -> Verdict:
    try:
        import resource
    except ImportError:
        return "ok", "no limit to check on this system"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        return "note", f"{soft}: each open stream takes one; `ulimit -n 20000` before you start the server"
    return "ok", f"up to {soft}"


def _folder(data: Path) -> Verdict:
    place = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        return "bad", f"{place} cannot be written to; chmod it, or give another --data folder"
    return "ok", str(data) if data.exists() else f"{data} (will be made)"


def _disk(data: Path) -> Verdict:
    place = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB"
    return ("ok", text) if free > _ROOM_BYTES else ("bad", f"{text}; new turns are refused when the disk is full")


def _commit_time(data: Path) -> Verdict:
    place = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            began = time.perf_counter()
            for _ in range(10):
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
            ms = (time.perf_counter() - began) * 100
    except OSError as error:
        return "bad", f"{place}: {error.strerror}"
    if ms > 20:
        return (
            "note",
            f"{ms:.1f} ms to make a write safe; a local SSD takes less than 1 ms, a network disk is a bad place",
        )
    return "ok", f"{ms:.2f} ms to make a write safe"


def _database(data: Path) -> Verdict:
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite import SqliteArchive

    if not data.exists():
        return "ok", "none yet"
    try:
        archive = SqliteArchive(data)
    except StoreUnusableError as error:
        return ("ok", "none yet") if "no such file" in str(error) else ("bad", str(error))
    try:
        problem = archive.check()
    finally:
        archive.close()
    return ("ok", "sound") if problem is None else ("bad", f"{problem}; restore a backup, or move the file away")


def _documents(data: Path) -> Verdict:
    from turnwire.assembly import LIBRARY_FILE
    from turnwire.core.errors import StoreUnusableError
    from turnwire.retrieval.index.library import Library

    library = Library(data / LIBRARY_FILE)
    if not library.path.exists():
        return "ok", "none are indexed; `turnwire index PATH`, or `turnwire serve --docs PATH`"
    try:
        library.open()
    except StoreUnusableError as error:
        return "bad", str(error)
    try:
        documents, passages = library.count()
    finally:
        library.close()
    return "ok", f"{documents:,} in {passages:,} passages"


def _model() -> Verdict:
    name = os.environ.get("TURNWIRE_MODEL")
    if not name:
        return "ok", "none: answers are quoted; TURNWIRE_MODEL names one"
    if find_spec("openai") is None:
        return "bad", f"{name} needs an extra: pip install 'turnwire[openai]'"
    return "ok", name


def _server(data: Path) -> Verdict:
    from turnwire.cli import client
    from turnwire.stores.sqlite.disk import is_locked

    if not data.exists() or not is_locked(data):
        return "ok", "none is using the folder"
    try:
        status = client.call(data, "GET", "/readyz")
    except typer.Exit:
        return "bad", "one is using the folder but does not answer; look at its output, or stop it"
    return "ok", f"running, {status['running_turns']} turn(s) under way"
