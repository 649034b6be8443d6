"""The program `turnwire`. Each command imports what it needs when it runs, so that `--help` is quick."""

from typing import Annotated

import typer

from turnwire.cli import dev, doctor, extensions, keys, recordings, serve, top, transfer, turns, verify
from turnwire.cli.commands import LOOK, OPERATE, RUN, TEST, Commands
from turnwire.cli.options import HelpfulGroup
from turnwire.plugins import installed

app = typer.Typer(
    name="turnwire",
    help="Run your AI agent's answers on the server, and stream them to any client without losing an event.",
    epilog="[bold]Start here:[/] turnwire serve, then open the address that it prints.",
    cls=HelpfulGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    # Older versions of typer show local variables by default, and one may be a key.
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"turnwire {version('turnwire')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options of the program itself."""


def _add_all(commands: Commands) -> None:
    add = commands.add
    add("serve", serve.serve, RUN, "", "--docs ./handbook --watch", "--agent mine=my_module:agent --port 9000")
    add("dev", dev.dev, RUN, "--agent my_module:agent", "--agent my_module:agent --docs ./handbook --no-open")
    add("worker", serve.worker, RUN, "--database-url postgresql://localhost/turnwire --agent my_module:agent")
    for plugin in installed().values():
        if plugin.commands is not None:
            plugin.load(plugin.commands)(commands)
    add("turns", turns.turns, LOOK, "", "--limit 100", "| cut -f1")
    add("tail", turns.tail, LOOK, "", "01a1e348", "01a1e348 --after 12 --wire sse_chat")
    add("inspect", turns.inspect, LOOK, "", "01a1e348 --html turn.html", "…1eb1544 --url https://agents.example")
    add("fork", turns.fork, LOOK, "01a1e348 --at 12", '01a1e348 --at 12 --message "And in winter?"')
    add("top", top.top, LOOK, "", "--once")
    add("record", recordings.record, TEST, "", "01a1e348 -o weather.jsonl", "…1eb1544 --url https://agents.example")
    add(
        "replay",
        recordings.replay,
        TEST,
        "weather.jsonl --agent my_module:agent",
        "*.jsonl --agent my_module:agent --update",
    )
    add("eval", recordings.evaluate, TEST, "./recordings --agent my_module:agent --model ollama/qwen3 --json")
    add("backup", transfer.backup, OPERATE, "/backups/today")
    commands.add_group("keys", keys.app, OPERATE)
    commands.add_group("extensions", extensions.app, OPERATE)
    add("move", transfer.move, OPERATE, "--database-url postgresql://localhost/turnwire")
    add("verify", verify.verify, OPERATE, "--all", "01a1e348 --json")
    add("doctor", doctor.doctor, OPERATE, "", "--data /var/lib/turnwire")


_add_all(Commands(app))


def main() -> None:
    app()
