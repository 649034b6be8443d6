"""Options that several commands share, loaders of what these name (settings, agents, logs), and printing."""

import inspect
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from turnwire.plugins import installed

if TYPE_CHECKING:
    from turnwire.settings import Settings
    from turnwire.stores.postgres.transfer import PostgresArchive
    from turnwire.stores.sqlite import SqliteArchive

    Archive = SqliteArchive | PostgresArchive

ID_LENGTH = 36
"""The length of a whole id of a turn or session."""
_MIN_PART = 4
"""The fewest characters that count as a part of an id: an empty variable in a script must not name anything."""
_SHOWN_IDS = 5
DATA_DEFAULT = "$TURNWIRE_DATA, or ~/.local/share/turnwire"


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


def without_ellipsis(part: str | None) -> str | None:
    """Return the part of an id without the … that tables put before it."""
    return part if part is None else part.removeprefix("…")


Data = Annotated[
    Path,
    typer.Option(
        "--data", help="The data folder, with the logs.", default_factory=default_data, show_default=DATA_DEFAULT
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="The PostgreSQL database of the servers, instead of a data folder.",
        envvar="TURNWIRE_DATABASE_URL",
        show_envvar=True,
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


@dataclass(frozen=True)
class SettingOption:
    """An option that sets a setting of a plugin, in all commands that run agents."""

    name: str
    setting: str
    type: Any
    """What typer reads, as in the signature of a command: `Annotated[bool, typer.Option(help=...)]`."""
    default: Any = None


Sections = dict[str, dict[str, Any]]
"""Settings by the plugin's name."""


def takes_plugin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of plugins to a command, which gets the settings that they make as `sections`.

    An option of the command itself hides a plugin's of the same name.
    """
    signature = inspect.signature(command, eval_str=True)
    options = [
        (plugin.name, option)
        for plugin in installed().values()
        if plugin.options is not None
        for option in plugin.load(plugin.options)
        if option.name not in signature.parameters
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        sections: Sections = {}
        for plugin, option in options:
            if (value := values.pop(option.name)) not in (None, option.default):
                sections.setdefault(plugin, {})[option.setting] = value
        command(**values, sections=sections)

    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "sections"]
    parameters += [
        inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for _, option in options
    ]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


def fail(message: str, code: int = 1) -> NoReturn:
    """Print the message to stderr and end the command."""
    typer.secho(f"turnwire: {message}", fg="red", err=True)
    raise typer.Exit(code)


def complete_id(part: str, ids: Iterable[str], *, by_end: bool = True) -> str:
    """Return the only id that begins (or ends) with `part`, or the part itself if there is none.

    The end counts too, because ids of the same moment begin alike. Fail if there are several.
    """
    if len(part) < _MIN_PART:
        return part
    found = [known for known in ids if known.startswith(part) or (by_end and known.endswith(part))]
    if len(found) > 1 and part not in found:
        lines = [*found[:_SHOWN_IDS], *(["…"] if len(found) > _SHOWN_IDS else [])]
        where = "begin or end" if by_end else "begin"
        fail(f"{len(found)} ids {where} with {part!r}; write more of it:\n  " + "\n  ".join(lines))
    return found[0] if len(found) == 1 else part


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]], elastic: str) -> None:
    """Print rows of texts, or of texts with a style. Only the `elastic` column is cut where the terminal is narrow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Cells are `Text`, because a value may look like markup.
    cells = [[Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row] for row in rows]
    table = Table(box=None, header_style="dim")
    for number, name in enumerate(columns):
        width = None if name == elastic else max(len(name), *(row[number].cell_len for row in cells))
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=width)
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


@contextmanager
def progress_bar(title: str) -> "Generator[Callable[[int, int], None]]":
    """Yield `show(done, total)`, which updates a progress bar in a terminal and does nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def open_archive(data: Path) -> "SqliteArchive":
    """Open the logs of a data folder for reading, also while a server uses it. Raise StoreUnusableError."""
    from turnwire.stores.sqlite import SqliteArchive

    return SqliteArchive(data)


def open_database(url: str) -> "PostgresArchive":
    """Open the logs of a database for reading, also while servers use it. Raise StoreUnusableError."""
    from turnwire.core.errors import StoreUnusableError

    try:
        from turnwire.stores.postgres.transfer import PostgresArchive
    except ImportError as error:
        raise StoreUnusableError("PostgreSQL", "its driver is missing; pip install 'turnwire[postgres]'") from error
    return PostgresArchive.build(load_settings(database_url=url))


def load_settings(config: Path | None = None, **options: Any) -> "Settings":
    """Read the settings; options that are not None override them."""
    from turnwire.settings import read_settings

    try:
        return read_settings(config, **{name: value for name, value in options.items() if value is not None})
    except ValueError as error:
        fail(str(error))


def load_agents(references: Iterable[str]) -> dict[str, Any]:
    """Import agents given as `module:name` or `name=module:name`. Raise ValueError."""
    from turnwire.agents.loader import load_agent

    agents: dict[str, Any] = {}
    for reference in references:
        name, equals, target = reference.rpartition("=")
        try:
            agents[name if equals else target.rpartition(":")[2]] = load_agent(target)
        except ValueError as error:
            raise ValueError(f"--agent: {error}") from error
    return agents


def _without_flag_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class HelpfulCommand(TyperCommand):
    """Command whose `--help` shows no type for a flag, which takes no value.

    An error of Turnwire ends it with the error's message, and Ctrl+C without one.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            from turnwire.core.errors import TurnwireError

            if not isinstance(error, TurnwireError):
                raise
            fail(str(error))


class HelpfulGroup(TyperGroup):
    """Group of commands whose `--help` shows no type for a flag."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))
