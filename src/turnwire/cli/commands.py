"""The table of commands, to which plugins add theirs."""

from collections.abc import Callable
from typing import Any

import typer

from turnwire.cli.options import HelpfulCommand

RUN, TALK, LOOK, TEST, OPERATE = "Run agents", "Talk to them", "Look at turns", "Test agents", "Operate"
"""The headings that `turnwire --help` sorts the commands under."""


class Commands:
    """The commands of a program. A function is a command by its signature, as typer reads it."""

    def __init__(self, app: typer.Typer) -> None:
        self._app = app

    def add(self, name: str, command: Callable[..., Any], heading: str, *examples: str) -> None:
        """Add a command with examples, which its help shows."""
        epilog = "\n".join(["[bold]Examples[/]", *(f"  turnwire {name} {example}".rstrip() for example in examples)])
        register = self._app.command(
            name, cls=HelpfulCommand, rich_help_panel=heading, epilog=epilog if examples else None
        )
        register(command)

    def add_group(self, name: str, group: typer.Typer, heading: str) -> None:
        """Add commands that share a first word."""
        self._app.add_typer(group, name=name, rich_help_panel=heading)
