"""`turnwire index`: read documents into the library, also while a server runs."""

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.options import Data, fail

if TYPE_CHECKING:
    from turnwire.retrieval.index.library import Library
    from turnwire.retrieval.indexer import SyncProgress
    from turnwire.settings import Settings


def index(
    data: Data,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders; by default those that were indexed before."),
    ] = None,
    forget: Annotated[
        list[Path] | None, typer.Option(help="Remove a file or folder from the library; may be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running, and index changed documents.")] = False,
    embed: Annotated[bool, typer.Option(help="Compute vectors too, if semantic search is installed.")] = True,
) -> None:
    """Index documents (Markdown, text, HTML, PDF, Word) to answer from. Unchanged documents are skipped."""
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
            # Outside the event loop, where Ctrl+C would wait for the last file.
            for root in roots:
                _sync(library, root, settings.max_document_bytes)
            asyncio.run(_continue(library, settings, roots, watch=watch, embed=embed))
        documents, passages = library.count()
        typer.echo(f"The library holds {documents:,} documents, {passages:,} passages: {library.path}")
    except TurnwireError as error:
        fail(str(error))
    except KeyboardInterrupt:
        typer.echo("Stopped. The documents read so far are kept; run the command again for the rest.")
    finally:
        library.close()


def _forget(library: "Library", path: Path) -> None:
    count = library.forget_root(str(path.resolve()))
    typer.echo(f"{path}: {count:,} documents removed" if count else f"{path}: not in the library")


def _roots(library: "Library", paths: list[Path]) -> list[Path]:
    roots = [path.resolve() for path in paths] or [Path(path) for path, own in library.roots().items() if not own]
    if not roots:
        fail("nothing was indexed before; name files or folders: turnwire index PATH…")
    return roots


async def _continue(library: "Library", settings: "Settings", roots: list[Path], *, watch: bool, embed: bool) -> None:
    if embed:
        await _embed(library, settings)
    if watch:
        await _watch(library, roots, settings, embed=embed)


def _sync(library: "Library", root: Path, max_bytes: int, *, is_watching: bool = False) -> None:
    from turnwire.retrieval.indexer import sync_root

    with _progress_bar(f"Reading {root}") as (bar, task):

        def report(progress: "SyncProgress") -> None:
            bar.update(task, total=progress.total, completed=progress.done)

        progress = sync_root(library, root, max_bytes=max_bytes, report=report)
    for name, problem in progress.problems:
        typer.secho(f"  {name}: {problem}", fg="yellow", err=True)
    if is_watching and not (progress.has_changed or progress.problems):
        return
    typer.echo(
        f"{root}: {progress.added:,} new, {progress.changed:,} changed, {progress.unchanged:,} unchanged,"
        f" {progress.removed:,} gone, {len(progress.problems):,} not readable"
    )


async def _embed(library: "Library", settings: "Settings") -> None:
    from turnwire.assembly import build_embedder
    from turnwire.retrieval.index.searcher import VectorIndex

    embedder = build_embedder(settings)
    if embedder is None:
        return
    vectors = VectorIndex(library, embedder)
    try:
        with _progress_bar("Embedding (full-text search works already)") as (bar, task):
            await vectors.embed_missing(lambda done, total: bar.update(task, total=total, completed=done))
    finally:
        await vectors.close()


async def _watch(library: "Library", roots: list[Path], settings: "Settings", *, embed: bool) -> None:
    from turnwire.retrieval.indexer import changed_roots

    typer.echo("Watching for changes. Stop: Ctrl+C")
    async for changed in changed_roots(roots):
        for root in changed:
            _sync(library, root, settings.max_document_bytes, is_watching=True)
        if embed:
            await _embed(library, settings)


@contextmanager
def _progress_bar(title: str) -> Any:
    """Yield a progress bar and its task. It is drawn on a terminal and silent in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(title, total=None)
