"""Options that several commands share, and how they fail."""

import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def default_data() -> Path:
    # Said here as well as in the settings, because those take long to load.
    if data := os.environ.get("TURNWIRE_DATA"):
        return Path(data)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "turnwire"


Data = Annotated[
    Path,
    typer.Option(
        "--data",
        help="The folder that holds the logs.",
        default_factory=default_data,
        show_default="$TURNWIRE_DATA, or ~/.local/share/turnwire",
    ),
]

# Those of the commands that run agents, where a setting may say it too.
DataSetting = Annotated[
    Path | None,
    typer.Option(
        "--data", help="The folder that holds the logs.", show_default="$TURNWIRE_DATA, or ~/.local/share/turnwire"
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="A PostgreSQL database that holds the logs instead.", show_default="$TURNWIRE_DATABASE_URL"),
]
Config = Annotated[
    Path | None, typer.Option(help="A TOML file of settings; the environment goes before it.", dir_okay=False)
]
Agents = Annotated[
    list[str] | None,
    typer.Option(help="Who answers, as [bold]module:name[/] or [bold]name=module:name[/]; may be repeated."),
]
Docs = Annotated[
    list[Path] | None,
    typer.Option(help="A file or folder of documents to answer from; may be repeated.", exists=True),
]
Watch = Annotated[bool, typer.Option("--watch", help="Read documents again when they change.")]
Vault = Annotated[
    Path | None, typer.Option(help="An Obsidian vault, for an agent named vault.", exists=True, file_okay=False)
]
Extensions = Annotated[
    list[Path] | None,
    typer.Option(help="A folder of extensions, or one extension; may be repeated.", exists=True),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


Url = Annotated[
    str | None,
    typer.Option(help="The server to ask; by default the one that serves the data folder.", envvar="TURNWIRE_URL"),
]
Key = Annotated[
    str | None, typer.Option(help="Your API key, if the server wants one.", envvar="TURNWIRE_API_KEY", show_envvar=True)
]


def fail(message: str) -> NoReturn:
    typer.secho(f"turnwire: {message}", fg="red", err=True)
    raise typer.Exit(1)
