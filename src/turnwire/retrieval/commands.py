"""`turnwire index` and `turnwire compare`: the library of documents, and answers from it in both modes."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.commands import RUN, TALK, Commands
from turnwire.cli.options import Data, Database, SettingOption, fail, load_settings, print_table, progress_bar

if TYPE_CHECKING:
    from turnwire.retrieval.comparisons import ComparisonRun
    from turnwire.retrieval.index.library import DocumentLibrary
    from turnwire.retrieval.indexer import SyncProgress
    from turnwire.settings import Settings
    from turnwire.testing.evaluation import TurnFigures


OPTIONS = [
    SettingOption(
        "docs",
        "paths",
        Annotated[
            list[Path] | None,
            typer.Option(
                metavar="<path>", help="A file or folder of documents to answer from; may be repeated.", exists=True
            ),
        ],
    ),
    SettingOption(
        "watch",
        "watch",
        Annotated[bool, typer.Option("--watch", help="Index documents again when they change.")],
        default=False,
    ),
    SettingOption(
        "vault",
        "vault",
        Annotated[
            Path | None, typer.Option(help="An Obsidian vault, for an agent named vault.", exists=True, file_okay=False)
        ],
    ),
]


def add_commands(commands: Commands) -> None:
    commands.add("index", index, RUN, "./handbook", "--watch", "--forget ./handbook")
    commands.add("compare", compare, TALK, '"What is a turn?" "What is a wire?"')


def index(
    data: Data,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders; by default those that were indexed before."),
    ] = None,
    forget: Annotated[
        list[Path] | None,
        typer.Option(metavar="<path>", help="Remove a file or folder from the library; may be repeated."),
    ] = None,
    database_url: Database = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running, and index changed documents.")] = False,
    embed: Annotated[bool, typer.Option(help="Compute vectors too, if semantic search is installed.")] = True,
) -> None:
    """Index documents (Markdown, text, HTML, PDF, Word) to answer from. Unchanged documents are skipped."""
    from turnwire.assembly import open_shared
    from turnwire.retrieval.service import build_library
    from turnwire.retrieval.settings import DocumentSettings

    for path in paths or []:
        if not path.exists():
            fail(f"{path} does not exist")
    settings = load_settings(data=data, database_url=database_url)
    database = None if database_url is None else open_shared(settings)
    library = build_library(data, database)
    try:
        library.open()
        for path in forget or []:
            _forget(library, path)
        if paths or not forget:
            roots = _roots(library, paths or [])
            # Not in the event loop, so that Ctrl+C interrupts it at once.
            for root in roots:
                _sync(library, root, settings.of(DocumentSettings).max_bytes)
            asyncio.run(_embed_and_watch(library, settings, roots, watch=watch, embed=embed))
        documents, passages = library.count()
        typer.echo(f"The library holds {documents:,} documents, {passages:,} passages: {library.location}")
    except KeyboardInterrupt:
        typer.echo("Stopped. The documents read so far are kept; run the command again for the rest.")
    finally:
        library.close()
        if database is not None:
            database.close()


def _forget(library: "DocumentLibrary", path: Path) -> None:
    count = library.forget_root(str(path.resolve()))
    typer.echo(f"{path}: {count:,} documents removed" if count else f"{path}: not in the library")


def _roots(library: "DocumentLibrary", paths: list[Path]) -> list[Path]:
    known = [Path(path) for path, own in library.roots().items() if not own]
    # A folder of a shared library may be on another machine.
    roots = [path.resolve() for path in paths] or [path for path in known if not library.is_shared or path.exists()]
    if not roots:
        fail("nothing was indexed before; name files or folders: turnwire index PATH…")
    return roots


async def _embed_and_watch(
    library: "DocumentLibrary", settings: "Settings", roots: list[Path], *, watch: bool, embed: bool
) -> None:
    if embed:
        await _embed(library, settings)
    if watch:
        await _watch(library, roots, settings, embed=embed)


def _sync(library: "DocumentLibrary", root: Path, max_bytes: int, *, is_watching: bool = False) -> None:
    from turnwire.retrieval.indexer import sync_root

    with progress_bar(f"Reading {root}") as show:

        def report(progress: "SyncProgress") -> None:
            show(progress.done, progress.total)

        progress = sync_root(library, root, max_bytes=max_bytes, report=report)
    for name, problem in progress.problems:
        typer.secho(f"  {name}: {problem}", fg="yellow", err=True)
    if is_watching and not (progress.has_changed or progress.problems):
        return
    typer.echo(
        f"{root}: {progress.added:,} new, {progress.changed:,} changed, {progress.unchanged:,} unchanged,"
        f" {progress.removed:,} gone, {len(progress.problems):,} not readable"
    )


async def _embed(library: "DocumentLibrary", settings: "Settings") -> None:
    from turnwire.retrieval.index.searcher import VectorIndex
    from turnwire.retrieval.service import build_embedder

    embedder = build_embedder(settings)
    if embedder is None:
        return
    vectors = VectorIndex(library, embedder)
    try:
        with progress_bar("Embedding (full-text search works already)") as show:
            await vectors.embed_missing(show)
    finally:
        await vectors.close()


async def _watch(library: "DocumentLibrary", roots: list[Path], settings: "Settings", *, embed: bool) -> None:
    from turnwire.retrieval.indexer import changed_roots
    from turnwire.retrieval.settings import DocumentSettings

    typer.echo("Watching for changes. Stop: Ctrl+C")
    async for changed in changed_roots(roots):
        for root in changed:
            _sync(library, root, settings.of(DocumentSettings).max_bytes, is_watching=True)
        if embed:
            await _embed(library, settings)


# Comparing the modes: synthesis from evidence, and direct.


def compare(
    data: Data,
    questions: Annotated[
        list[str] | None, typer.Argument(help="The questions to ask; without any, earlier results are shown.")
    ] = None,
    review: Annotated[bool, typer.Option(help="Review the evidence.")] = True,
    keep: Annotated[bool, typer.Option(help="Keep the results, to follow them over time.")] = True,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="<file>", help="Write all kept results as a page with charts and a table."),
    ] = None,
) -> None:
    """Answer questions from the documents in both modes; show time, citations and text side by side, and over time."""
    from turnwire.retrieval.comparisons import COMPARISONS_FILE, read_runs, render_page

    settings = load_settings(data=data)
    kept = settings.data / COMPARISONS_FILE
    try:
        if questions:
            if settings.model is None:
                text = "No model is configured (TURNWIRE_MODEL): both answers are quotations."
                typer.secho(text, fg="yellow", err=True)
            asyncio.run(_compare(questions, settings, review, kept if keep else None))
        runs = read_runs(kept)
        if page is not None:
            page.write_text(render_page(runs), "utf-8")
            typer.echo(f"{page} has {len(runs)} runs.", err=True)
        elif not questions:
            _show_runs(runs)
    except OSError as error:
        fail(str(error))


async def _compare(questions: list[str], settings: "Settings", review: bool, kept: Path | None) -> None:
    from turnwire import __version__
    from turnwire.core.log.codec import now_ms
    from turnwire.retrieval.comparisons import MODES, KeptComparison, keep
    from turnwire.server.auth import LOCAL_PRINCIPAL
    from turnwire.testing.client import open_client
    from turnwire.testing.evaluation import figures_of

    at = now_ms()
    async with open_client(settings=settings) as client:
        for question in questions:
            figures: dict[str, TurnFigures] = {}
            for mode in MODES:
                typer.echo(f"Asking ({mode}): {question}", err=True)
                turn = await client.send(
                    question, options={"answer": mode, "review": review}, principal=LOCAL_PRINCIPAL
                )
                figures[mode] = figures_of(turn.log, settings.model_prices)
            _show(question, figures)
            if kept is not None:
                keep(
                    kept,
                    KeptComparison(
                        at=at,
                        turnwire=__version__,
                        model=settings.model,
                        question=question,
                        review=review,
                        figures=figures,
                    ),
                )


def _show_runs(runs: "list[ComparisonRun]") -> None:
    from turnwire.retrieval.comparisons import MODES, SERIES

    if not runs:
        typer.echo("Nothing was compared yet. Ask with: turnwire compare QUESTION…", err=True)
        return
    columns = ("run", "model", "questions", "mode", *(title for title, _ in SERIES.values()))
    rows = [
        [run.time, run.model or "none", str(len(run.comparisons)), mode]
        + [show(run.mean(mode, figure)) for figure, (_, show) in SERIES.items()]
        for run in runs
        for mode in MODES
    ]
    print_table(columns, [[*row] for row in rows], "model")


def _show(question: str, figures: "dict[str, TurnFigures]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Plain text: a question or an answer may look like markup.
    table = Table(title=Text(question), show_lines=True, expand=True)
    table.add_column("")
    for mode in figures:
        table.add_column(mode, ratio=1)
    columns = [_texts(each) for each in figures.values()]
    for name in columns[0]:
        table.add_row(name, *(Text(column[name]) for column in columns))
    Console().print(table)


def _texts(figures: "TurnFigures") -> dict[str, str]:
    def timing(ms: float | None) -> str:
        return "–" if ms is None else f"{ms:,.0f} ms"

    tokens = f"{figures.input_tokens or '?'} in, {figures.output_tokens or '?'} out"
    has_tokens = figures.input_tokens is not None or figures.output_tokens is not None
    return {
        "mode": figures.mode or figures.outcome,
        "first token": timing(figures.first_token_ms),
        "total": timing(figures.total_ms),
        "sentences cited": f"{figures.cited:.0%}",
        "tokens": tokens if has_tokens else "–",
        "answer": figures.answer,
    }
