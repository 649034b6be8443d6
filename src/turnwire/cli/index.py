"""`turnwire index`: reads documents into the library, beside a running server if there is one."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.options import Data, fail

if TYPE_CHECKING:
    from turnwire.retrieval.index.library import Library
    from turnwire.retrieval.index.sync import SyncProgress
    from turnwire.settings import Settings


def index(
    data: Data,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders; without any, those that were indexed before are read again."),
    ] = None,
    forget: Annotated[
        list[Path] | None, typer.Option(help="Take a file or folder out of the library; may be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and read documents again when they change.")] = False,
    embed: Annotated[bool, typer.Option(help="Make vectors too, where search by meaning is installed.")] = True,
) -> None:
    """Read documents (Markdown, text, HTML, PDF, Word) to answer from. What has not changed is not read again."""
    from turnwire.assembly import LIBRARY_FILE
    from turnwire.core.errors import TurnwireError
    from turnwire.retrieval.index.library import Library
    from turnwire.settings import Settings

    for path in paths or []:
        if not path.exists():
            fail(f"{path} does not exist")
    settings = Settings(data=data)
    library = Library(data / LIBRARY_FILE)
    try:
        library.open()
        for path in forget or []:
            _forget(library, path)
        if paths or not forget:
            roots = _roots(library, paths or [])
            # Not inside the event loop, where Ctrl+C would have to wait for the last file.
            for root in roots:
                _sync(library, root, settings.max_document_bytes)
            asyncio.run(_go_on(library, settings, roots, watch=watch, embed=embed))
        documents, passages = library.count()
        typer.echo(f"The library holds {documents:,} documents, {passages:,} passages: {library.path}")
    except TurnwireError as error:
        fail(str(error))
    except KeyboardInterrupt:
        typer.echo("Stopped. What was read stays; the rest is read the next time.")
    finally:
        library.close()


def _forget(library: "Library", path: Path) -> None:
    count = library.forget_root(str(path.resolve()))
    typer.echo(f"{path}: {count:,} documents are forgotten" if count else f"{path}: it was not in the library")


def _roots(library: "Library", paths: list[Path]) -> list[Path]:
    roots = [path.resolve() for path in paths] or [Path(path) for path, own in library.roots().items() if not own]
    if not roots:
        fail("nothing was indexed before; say what to read: turnwire index PATH…")
    return roots


async def _go_on(library: "Library", settings: "Settings", roots: list[Path], *, watch: bool, embed: bool) -> None:
    if embed:
        await _embed(library, settings)
    if watch:
        await _watch(library, roots, settings, embed=embed)


def _sync(library: "Library", root: Path, most_bytes: int, *, is_watching: bool = False) -> None:
    from turnwire.retrieval.index.sync import sync_root

    with _bar(f"Reading {root}") as (bar, task):

        def report(progress: "SyncProgress") -> None:
            bar.update(task, total=progress.total, completed=progress.done)

        progress = sync_root(library, root, max_bytes=most_bytes, report=report)
    for name, why in progress.problems:
        typer.secho(f"  {name}: {why}", fg="yellow", err=True)
    if is_watching and not (progress.has_changed or progress.problems):
        return
    typer.echo(
        f"{root}: {progress.added:,} new, {progress.changed:,} changed, {progress.unchanged:,} unchanged,"
        f" {progress.removed:,} gone, {len(progress.problems):,} not readable"
    )


async def _embed(library: "Library", settings: "Settings") -> None:
    from turnwire.assembly import build_embedder
    from turnwire.retrieval.index.vectors import VectorIndex

    embedder = build_embedder(settings)
    if embedder is None:
        return
    meaning = VectorIndex(library, embedder)
    try:
        with _bar("Embedding (full-text search works already)") as (bar, task):
            await meaning.embed_missing(lambda done, total: bar.update(task, total=total, completed=done))
    finally:
        await meaning.close()


async def _watch(library: "Library", roots: list[Path], settings: "Settings", *, embed: bool) -> None:
    from turnwire.retrieval.indexer import changed_roots

    typer.echo("Watching for changes. Stop: Ctrl+C")
    async for changed in changed_roots(roots):
        for root in changed:
            _sync(library, root, settings.max_document_bytes, is_watching=True)
        if embed:
            await _embed(library, settings)


def _bar(title: str) -> Any:
    """A progress bar, and the task to update; on a terminal it is drawn, in a pipe it is silent."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def shown() -> Any:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            yield bar, bar.add_task(title, total=None)

    return shown()
