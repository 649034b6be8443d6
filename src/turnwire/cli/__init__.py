"""The command line. Each command imports what it needs when it runs, so that `--help` is quick."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from turnwire.cli import (
    chat,
    dev,
    doctor,
    documents,
    extensions,
    keys,
    recordings,
    schedules,
    serve,
    stdio,
    top,
    transfer,
    turns,
    verify,
)
from turnwire.cli.options import HelpfulCommand, HelpfulGroup

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

_RUN, _TALK, _LOOK, _TEST, _OPERATE = "Run agents", "Talk to them", "Look at turns", "Test agents", "Operate"


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


def _add(name: str, command: Callable[..., Any], group: str, *examples: str) -> None:
    """Add a command with examples, which its help shows."""
    epilog = "\n".join(["[bold]Examples[/]", *(f"  turnwire {name} {example}".rstrip() for example in examples)])
    app.command(name, cls=HelpfulCommand, rich_help_panel=group, epilog=epilog if examples else None)(command)


_add("serve", serve.serve, _RUN, "", "--docs ./handbook --watch", "--agent mine=my_module:agent --port 9000")
_add("dev", dev.dev, _RUN, "--agent my_module:agent", "--agent my_module:agent --docs ./handbook --no-open")
_add("worker", serve.worker, _RUN, "--database-url postgresql://localhost/turnwire --agent my_module:agent")
_add("chat", chat.chat, _TALK, "", "--agent my_module:agent", "--url https://agents.example --key tw_…")
_add("ask", chat.ask, _TALK, '"What is a turn?"', "--json - < question.txt", '--session 01a1e348 "And then?"')
_add("acp", stdio.acp, _TALK, "", "--url https://agents.example --key tw_…", "--agent my_module:agent")
_add("mcp", stdio.mcp, _TALK, "", "--url https://agents.example --key tw_…", "--agent my_module:agent")
_add("index", documents.index, _RUN, "./handbook", "--watch", "--forget ./handbook")
_add("compare", documents.compare, _TALK, '"What is a turn?" "What is a wire?"')
_add("turns", turns.turns, _LOOK, "", "--limit 100", "| cut -f1")
_add("tail", turns.tail, _LOOK, "", "01a1e348", "01a1e348 --after 12 --wire sse_chat")
_add("inspect", turns.inspect, _LOOK, "", "01a1e348 --html turn.html", "…1eb1544 --url https://agents.example")
_add("fork", turns.fork, _LOOK, "01a1e348 --at 12", '01a1e348 --at 12 --message "And in winter?"')
_add("top", top.top, _LOOK, "", "--once")
_add("record", recordings.record, _TEST, "", "01a1e348 -o weather.jsonl", "…1eb1544 --url https://agents.example")
_add(
    "replay",
    recordings.replay,
    _TEST,
    "weather.jsonl --agent my_module:agent",
    "*.jsonl --agent my_module:agent --update",
)
_add("eval", recordings.evaluate, _TEST, "./recordings --agent my_module:agent --model ollama/qwen3 --json")
_add("backup", transfer.backup, _OPERATE, "/backups/today")
app.add_typer(keys.app, name="keys", rich_help_panel=_OPERATE)
app.add_typer(schedules.app, name="schedules", rich_help_panel=_OPERATE)
app.add_typer(extensions.app, name="extensions", rich_help_panel=_OPERATE)
_add("move", transfer.move, _OPERATE, "--database-url postgresql://localhost/turnwire")
_add("verify", verify.verify, _OPERATE, "--all", "01a1e348 --json")
_add("doctor", doctor.doctor, _OPERATE, "", "--data /var/lib/turnwire")


def main() -> None:
    app()
