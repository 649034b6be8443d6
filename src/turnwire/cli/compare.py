"""`turnwire compare`: answer a question in both modes, synthesis from evidence and direct, side by side."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, fail

if TYPE_CHECKING:
    from turnwire.core.contracts import Store
    from turnwire.core.runner import TurnRunner
    from turnwire.core.turns import TurnState
    from turnwire.settings import Settings

MODES = ("synthesis", "direct")


def compare(
    questions: Annotated[list[str], typer.Argument(help="The questions to ask.")],
    data: Data,
    review: Annotated[bool, typer.Option(help="Review the evidence.")] = True,
) -> None:
    """Answer questions from the documents in both modes; show time, citations and text side by side."""
    from turnwire.core.errors import TurnwireError
    from turnwire.settings import Settings

    settings = Settings(data=data)
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
            states = {mode: await _ask(store, runner, question, mode, review) for mode in MODES}
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
    return {
        "mode": state.mode or state.outcome or "",
        "first token": timing("first_token_ms"),
        "total": timing("total_ms"),
        "sentences cited": f"{citation_coverage(state.text):.0%}",
        "tokens": "–" if usage is None else f"{usage.input_tokens or '?'} in, {usage.output_tokens or '?'} out",
        "answer": state.text or (state.error.error if state.error else ""),
    }
