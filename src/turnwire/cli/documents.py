"""`turnwire index` and `turnwire compare`: the library of documents, and answers from it in both modes."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, fail, load_settings, progress_bar

if TYPE_CHECKING:
    from turnwire.core.contracts import Store
    from turnwire.core.runner import TurnRunner
    from turnwire.core.turns import TurnState
    from turnwire.retrieval.index.library import Library
    from turnwire.retrieval.indexer import SyncProgress
    from turnwire.settings import Settings

_MODES = ("synthesis", "direct")


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
    watch: Annotated[bool, typer.Option("--watch", help="Keep running, and index changed documents.")] = False,
    embed: Annotated[bool, typer.Option(help="Compute vectors too, if semantic search is installed.")] = True,
) -> None:
    """Index documents (Markdown, text, HTML, PDF, Word) to answer from. Unchanged documents are skipped."""
    from turnwire.assembly import LIBRARY_FILE
    from turnwire.core.errors import TurnwireError
    from turnwire.retrieval.index.library import Library

    for path in paths or []:
        if not path.exists():
            fail(f"{path} does not exist")
    settings = load_settings(data=data)
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


async def _embed(library: "Library", settings: "Settings") -> None:
    from turnwire.assembly import build_embedder
    from turnwire.retrieval.index.searcher import VectorIndex

    embedder = build_embedder(settings)
    if embedder is None:
        return
    vectors = VectorIndex(library, embedder)
    try:
        with progress_bar("Embedding (full-text search works already)") as show:
            await vectors.embed_missing(show)
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


# Comparing the modes: synthesis from evidence, and direct.


def compare(
    questions: Annotated[list[str], typer.Argument(help="The questions to ask.")],
    data: Data,
    review: Annotated[bool, typer.Option(help="Review the evidence.")] = True,
) -> None:
    """Answer questions from the documents in both modes; show time, citations and text side by side."""
    from turnwire.core.errors import TurnwireError

    settings = load_settings(data=data)
    if settings.model is None:
        typer.secho("No model is configured (TURNWIRE_MODEL): both answers are quotations.", fg="yellow", err=True)
    try:
        asyncio.run(_compare(questions, settings, review))
    except TurnwireError as error:
        fail(str(error))


async def _compare(questions: list[str], settings: "Settings", review: bool) -> None:
    from turnwire import assembly

    indexer, agent = assembly.build_retrieval(settings.data, [], settings)
    store = assembly.build_store("memory", settings)
    runner = assembly.build_runner(store, {"documents": agent}, settings)
    await store.open()
    await indexer.open()
    await runner.open()
    try:
        await indexer.settled()
        for question in questions:
            states = {mode: await _ask(store, runner, question, mode, review) for mode in _MODES}
            _show(question, states)
    finally:
        await runner.close()
        await agent.close()
        await indexer.close()
        await store.close()


async def _ask(store: "Store", runner: "TurnRunner", question: str, mode: str, review: bool) -> "TurnState":
    from turnwire.core.follow import follow
    from turnwire.core.runner import TurnRequest
    from turnwire.server.auth import LOCAL_PRINCIPAL

    typer.echo(f"Asking ({mode}): {question}", err=True)
    options = {"answer": mode, "review": review}
    accepted = await runner.start(TurnRequest(principal=LOCAL_PRINCIPAL, message=question, options=options))
    async for _ in follow(store, accepted.record.id):
        pass
    state = await store.turn_state(accepted.record.id)
    assert state is not None
    return state


def _show(question: str, states: "dict[str, TurnState]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Plain text: a question or an answer may look like markup.
    table = Table(title=Text(question), show_lines=True, expand=True)
    table.add_column("")
    for mode in states:
        table.add_column(mode, ratio=1)
    columns = [_figures(state) for state in states.values()]
    for name in columns[0]:
        table.add_row(name, *(Text(figures[name]) for figures in columns))
    Console().print(table)


def _figures(state: "TurnState") -> dict[str, str]:
    from turnwire.retrieval.citations import citation_coverage

    def timing(name: str) -> str:
        return f"{state.timings[name]:,.0f} ms" if name in state.timings else "–"

    usage = state.usage
    # A quoted block has one marker for all its sentences.
    cited = 1.0 if state.mode == "extractive" else citation_coverage(state.text)
    return {
        "mode": state.mode or state.outcome or "",
        "first token": timing("first_token_ms"),
        "total": timing("total_ms"),
        "sentences cited": f"{cited:.0%}",
        "tokens": "–" if usage is None else f"{usage.input_tokens or '?'} in, {usage.output_tokens or '?'} out",
        "answer": state.text or (state.error.error if state.error else ""),
    }
