"""`turnwire doctor`: checks of the installation, the data folder and the server, each with a remedy."""

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import typer

from turnwire.cli.options import Data, Database, open_database
from turnwire.plugins import Check, installed

Verdict = tuple[Literal["ok", "note", "bad"], str]
_MARKS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}
_MIN_FREE_BYTES = 64 * 1024 * 1024


def doctor(data: Data, database_url: Database = None) -> None:
    """Check Python, SQLite, the data folder, the disk and the running server; with PostgreSQL, the database."""
    running: list[tuple[str, Callable[[], Verdict]]] = [
        ("database", lambda: _database(data)),
        ("server", lambda: _server(data)),
    ]
    if database_url is not None:
        running = [
            ("database", lambda: _postgres(database_url)),
            ("servers", lambda: _workers(database_url)),
            ("extensions", lambda: _extensions(database_url)),
        ]
    checks: list[tuple[str, Callable[[], Verdict]]] = [
        ("Python", _python),
        ("fast server", _speedups),
        ("SQLite", _sqlite),
        ("open files", _open_files),
        ("data folder", lambda: _folder(data)),
        ("free disk", lambda: _disk(data)),
        ("commit time", lambda: _commit_time(data)),
        ("model", _model),
        *running,
    ]
    is_sound = True
    for check in (*(_run(name, check) for name, check in checks), *_of_plugins(data, database_url)):
        mark, colour = _MARKS[check.verdict]
        is_sound &= check.verdict != "bad"
        typer.echo(f"{typer.style(mark, fg=colour)} {check.name:<12} {check.text}")
    if not is_sound:
        raise typer.Exit(1)


def _run(name: str, check: Callable[[], Verdict]) -> Check:
    from turnwire.core.errors import StoreError

    try:
        return Check(name, *check())
    except StoreError as error:
        return Check(name, "bad", str(error))


def _of_plugins(data: Path, database_url: str | None) -> Iterator[Check]:
    for plugin in installed().values():
        if plugin.checks is not None:
            yield from plugin.load(plugin.checks)(data, database_url)


def _python() -> Verdict:
    version = ".".join(map(str, sys.version_info[:3]))
    return ("ok", version) if sys.version_info >= (3, 11) else ("bad", f"{version}; Turnwire needs 3.11 or newer")


def _speedups() -> Verdict:
    missing = [name for name in ("uvloop", "httptools") if find_spec(name) is None]
    if missing:
        return (
            "note",
            f"{', '.join(missing)} missing, so streams cost about 1.6 times as much; pip install {' '.join(missing)}",
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


def _existing_folder(data: Path) -> Path:
    return next(folder for folder in (data, *data.absolute().parents) if folder.exists())


def _folder(data: Path) -> Verdict:
    folder = _existing_folder(data)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return "bad", f"{folder} cannot be written to; chmod it, or choose another --data folder"
    return "ok", str(data) if data.exists() else f"{data} (will be created)"


def _disk(data: Path) -> Verdict:
    folder = _existing_folder(data)
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB"
    return ("ok", text) if free > _MIN_FREE_BYTES else ("bad", f"{text}; new turns are refused when the disk is full")


def _commit_time(data: Path) -> Verdict:
    folder = _existing_folder(data)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(10):
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
            ms = (time.perf_counter() - began) * 100
    except OSError as error:
        return "bad", f"{folder}: {error.strerror}"
    if ms > 20:
        return (
            "note",
            f"{ms:.1f} ms per fsync; a local SSD takes less than 1 ms, so keep the data folder off network disks",
        )
    return "ok", f"{ms:.2f} ms per fsync"


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


# PostgreSQL


def _postgres(url: str) -> Verdict:
    with closing(open_database(url)) as archive:
        began = time.perf_counter()
        archive.newest_turns(1)
        ms = (time.perf_counter() - began) * 1000
        return "ok", f"{archive.location} answers in {ms:.1f} ms"


def _workers(url: str) -> Verdict:
    with closing(open_database(url)) as archive:
        workers = archive.workers()
    running = sum(worker.running for worker in workers)
    return "ok", f"{len(workers)} process(es), {running} running turn(s)" if workers else "none is using the database"


def _extensions(url: str) -> Verdict:
    with closing(open_database(url)) as archive:
        held = archive.extensions()
    return "ok", ", ".join(f"{name} at {holder.rpartition(':')[0]}" for name, holder in held) or "none runs"


def _model() -> Verdict:
    from turnwire.core.errors import ModelUnusableError
    from turnwire.models.address import check_model, local_models, locate_model

    name = os.environ.get("TURNWIRE_MODEL")
    if not name:
        found = local_models()
        offer = f"`turnwire serve --model {found[0]}` uses one that runs here" if found else "choose one with --model"
        return "ok", f"none, so answers are quotations; {offer}"
    if find_spec("openai") is None:
        return "bad", f"{name} needs an extra: pip install 'turnwire[openai]'"
    try:
        address = locate_model(name, os.environ.get("TURNWIRE_MODEL_URL"), os.environ.get("TURNWIRE_MODEL_KEY"))
    except ModelUnusableError as error:
        return "bad", str(error)
    problem = check_model(address)
    return ("bad", problem) if problem else ("ok", f"{address.name} at {address.url}")


def _server(data: Path) -> Verdict:
    from turnwire.cli.client import announced_server, request
    from turnwire.cli.server_errors import HostError
    from turnwire.stores.sqlite.disk import is_locked

    if not data.exists() or not is_locked(data):
        return "ok", "none is using the folder"
    try:
        status = request(announced_server(data), "GET", "/readyz")
    except HostError as error:
        return "bad", f"a process is using the folder but does not answer ({error}); read its output, or stop it"
    return "ok", f"running, {status['running_turns']} unfinished turn(s)"
