"""The command line. Each command imports what it needs when it runs, so that `--help` is quick."""

import typer

from turnwire.cli import (
    backup,
    chat,
    compare,
    doctor,
    extensions,
    index,
    inspect,
    keys,
    move,
    serve,
    top,
    turns,
    worker,
)

app = typer.Typer(
    name="turnwire",
    help="Agents in, one durable log per turn, every wire out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    # Older versions of typer show local variables by default, and one may be a key.
    pretty_exceptions_show_locals=False,
)
app.command("serve")(serve.serve)
app.command("worker")(worker.worker)
app.command("chat")(chat.chat)
app.command("ask")(chat.ask)
app.command("index")(index.index)
app.command("compare")(compare.compare)
app.command("turns")(turns.turns)
app.command("tail")(turns.tail)
app.command("inspect")(inspect.inspect)
app.command("top")(top.top)
app.command("backup")(backup.backup)
app.add_typer(keys.app, name="keys")
app.add_typer(extensions.app, name="extensions")
app.command("move")(move.move)
app.command("doctor")(doctor.doctor)


def main() -> None:
    app()
