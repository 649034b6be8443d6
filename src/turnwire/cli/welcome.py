"""What a server says when it is there. Lines of markup, so that one process can say it for another."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any


def welcome(turnwire: Any, url: str) -> list[str]:
    from rich.markup import escape

    names = ", ".join(turnwire.agents)
    lines = [f"\n[bold]Turnwire[/] is listening on [bold cyan]{url}[/]   agents: {escape(names)}\n"]
    if turnwire.librarian is not None:
        lines.append(f"[dim]Answers come from[/] {escape(_sources(turnwire))}")
    for hosted in turnwire.kernel.extensions.values() if turnwire.kernel is not None else ():
        # That the channels of our own run which nobody has set up is no news.
        is_news = hosted.is_up and (hosted.found.source != "bundled" or hosted.manifest.secrets)
        if is_news or hosted.state == "failed":
            told = "".join(f": {part}" for part in (hosted.message, hosted.hint) if part)
            lines.append(f"[dim]Extension[/] {hosted.id} [dim]{hosted.state}[/]{escape(told)}")
    # As it was called, if it is not on the PATH.
    program = "turnwire" if shutil.which("turnwire") else os.path.relpath(sys.argv[0])
    data = turnwire.settings.data
    in_database = turnwire.settings.database_url is not None
    if turnwire.librarian is not None:
        message = """{"message": "What happens when the process is killed?"}"""
        route = "/v1/rag/sessions/hello/messages/stream"
    else:
        message, route = """{"message": "Hello"}""", "/chat/stream"
    commands = {
        "Ask, and watch, in a browser:": f"{url}/",
        "Talk to it from another terminal:": f"{program} chat {f'--url {url}' if in_database else f'--data {data}'}",
        "Or ask with curl, and watch the answer being made:": (
            f"curl -N {url}{route} -H 'Content-Type: application/json' -d '{message}'"
        ),
        "Break it off at any moment and go on after the last id you saw:": (
            f"curl -N '{url}/v1/turns/TURN_ID/events?after=12'"
        ),
    }
    if not in_database:
        commands["Watch the newest turn from another terminal:"] = f"{program} tail --data {data}"
    for what, command in commands.items():
        lines += [f"[dim]{what}[/]", f"  {escape(command)}"]
    return [*lines, f"[dim]All routes:[/] {url}/docs   [dim]Stop: Ctrl+C[/]\n"]


def show(lines: Sequence[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        # Unwrapped, so that it can be copied as it stands.
        console.print(line, soft_wrap=True)


def _sources(turnwire: Any) -> str:
    roots = [root.path for root in turnwire.librarian.roots if not root.is_own]
    if not roots:
        return "Turnwire's own documentation; give it yours with --docs PATH"
    model = turnwire.settings.model
    return f"{', '.join(map(str, roots))}, {f'written by {model}' if model else 'quoted (no model is configured)'}"
