"""Options that several commands share, and what the commands that run agents build from them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from turnwire.stores.sqlite import SqliteArchive

POSTGRES_HINT = (
    "pip install 'turnwire[postgres]', and name a database with "
    "--database-url postgresql://user@host/name or TURNWIRE_DATABASE_URL"
)
_DATA_DEFAULT = "$TURNWIRE_DATA, or ~/.local/share/turnwire"


def default_data() -> Path:
    # Repeats `settings.default_data_folder`, because importing the settings is slow.
    if data := os.environ.get("TURNWIRE_DATA"):
        return Path(data)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "turnwire"


def _check_url(url: str | None) -> str | None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise typer.BadParameter("the URL must begin with http:// or https://")
    return url


Data = Annotated[
    Path,
    typer.Option(
        "--data", help="The data folder, with the logs.", default_factory=default_data, show_default=_DATA_DEFAULT
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        help="The server's URL; by default the server that uses the data folder.",
        envvar="TURNWIRE_URL",
        callback=_check_url,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(help="The API key, if the server requires one.", envvar="TURNWIRE_API_KEY", show_envvar=True),
]

# Options of `serve` and `worker`: each overrides the setting of its name.
DataSetting = Annotated[
    Path | None, typer.Option("--data", help="The data folder, with the logs.", show_default=_DATA_DEFAULT)
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="A PostgreSQL database for the logs instead.", show_default="$TURNWIRE_DATABASE_URL"),
]
Config = Annotated[
    Path | None, typer.Option(help="A TOML file of settings; the environment overrides it.", dir_okay=False)
]
Agents = Annotated[
    list[str] | None,
    typer.Option(help="An agent, as [bold]module:name[/] or [bold]name=module:name[/]; may be repeated."),
]
Docs = Annotated[
    list[Path] | None,
    typer.Option(help="A file or folder of documents to answer from; may be repeated.", exists=True),
]
Watch = Annotated[bool, typer.Option("--watch", help="Index documents again when they change.")]
Vault = Annotated[
    Path | None, typer.Option(help="An Obsidian vault, for an agent named vault.", exists=True, file_okay=False)
]
Extensions = Annotated[
    list[Path] | None,
    typer.Option(help="A folder of extensions, or one extension; may be repeated.", exists=True),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


def fail(message: str, code: int = 1) -> NoReturn:
    """Print the message to stderr and end the command."""
    typer.secho(f"turnwire: {message}", fg="red", err=True)
    raise typer.Exit(code)


def open_archive(data: Path) -> "SqliteArchive":
    """Open the logs of a data folder for reading, also while a server uses it."""
    from turnwire.core.errors import StoreUnusableError
    from turnwire.stores.sqlite import SqliteArchive

    try:
        return SqliteArchive(data)
    except StoreUnusableError as error:
        fail(str(error))


def load_settings(config: Path | None, **options: Any) -> Any:
    """Read the settings; options that are not None override them."""
    from turnwire.settings import read_settings

    try:
        return read_settings(config, **{name: value for name, value in options.items() if value is not None})
    except ValueError as error:
        fail(str(error))


def configure_logging(settings: Any, level: str) -> None:
    from turnwire.reporting.logs import configure

    configure(settings.log_format, level, content=settings.log_content)


def load_agents(references: Iterable[str]) -> dict[str, Any]:
    """Import agents given as `module:name` or `name=module:name`. Raise ValueError."""
    from turnwire.assembly import load_agent

    agents: dict[str, Any] = {}
    for reference in references:
        name, equals, target = reference.rpartition("=")
        try:
            agents[name if equals else target.rpartition(":")[2]] = load_agent(target)
        except ValueError as error:
            raise ValueError(f"--agent: {error}") from error
    return agents


def build_turnwire(
    settings: Any,
    agents: Sequence[str],
    docs: Sequence[Path],
    watch: bool,
    extensions: Sequence[Path] | None,
    control_token: str | None = None,
) -> Any:
    """Build the application. With `extensions=None` it runs no extensions, whatever the settings say."""
    from turnwire.app import Turnwire
    from turnwire.core.errors import TurnwireError

    if extensions is None:
        settings = settings.model_copy(update={"extensions": []})
    try:
        return Turnwire(
            agents=load_agents(agents),
            store="sqlite" if settings.database_url is None else "postgres",
            settings=settings,
            docs=docs,
            watch=watch,
            extensions=extensions,
            control_token=control_token,
        )
    except (TurnwireError, ValueError) as error:
        fail(str(error))
