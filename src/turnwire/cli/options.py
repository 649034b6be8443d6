"""Options that several commands share, and how they fail."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

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


# What the commands that run agents make of their options.


TO_POSTGRES = (
    "pip install 'turnwire[postgres]', and give it a database with "
    "--database-url postgresql://user@host/name or TURNWIRE_DATABASE_URL"
)


def read_given(config: Path | None, **options: Any) -> Any:
    """The settings, with the options that were given before all others."""
    from turnwire.settings import read_settings

    try:
        return read_settings(config, **{name: value for name, value in options.items() if value is not None})
    except ValueError as error:
        fail(str(error))


def begin_logging(settings: Any, level: str) -> None:
    from turnwire.reporting.logs import configure

    configure(settings.log_format, level, content=settings.log_content)


def build(
    settings: Any,
    agents: Sequence[str],
    docs: Sequence[Path],
    watch: bool,
    extensions: Sequence[Path] | None,
    control_token: str | None = None,
) -> Any:
    """With no list of `extensions`, none are run, whatever the settings say."""
    from turnwire.app import Turnwire
    from turnwire.assembly import load_agent
    from turnwire.core.errors import TurnwireError

    named: dict[str, Any] = {}
    for reference in agents:
        name, equals, target = reference.rpartition("=")
        try:
            named[name if equals else target.rpartition(":")[2]] = load_agent(target)
        except ValueError as error:
            fail(f"--agent: {error}")
    if extensions is None:
        settings = settings.model_copy(update={"extensions": []})
    try:
        return Turnwire(
            agents=named,
            store="sqlite" if settings.database_url is None else "postgres",
            settings=settings,
            docs=docs,
            watch=watch,
            extensions=extensions,
            control_token=control_token,
        )
    except (TurnwireError, ValueError) as error:
        fail(str(error))
