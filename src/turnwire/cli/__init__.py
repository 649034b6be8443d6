"""The command line. Each command imports what it needs when it runs, so that `--help` is quick."""

import typer

from turnwire.cli import chat, dev, doctor, documents, extensions, keys, serve, top, transfer, turns

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
app.command("dev")(dev.dev)
app.command("worker")(serve.worker)
app.command("chat")(chat.chat)
app.command("ask")(chat.ask)
app.command("index")(documents.index)
app.command("compare")(documents.compare)
app.command("turns")(turns.turns)
app.command("tail")(turns.tail)
app.command("inspect")(turns.inspect)
app.command("top")(top.top)
app.command("backup")(transfer.backup)
app.add_typer(keys.app, name="keys")
app.add_typer(extensions.app, name="extensions")
app.command("move")(transfer.move)
app.command("doctor")(doctor.doctor)


def main() -> None:
    app()
