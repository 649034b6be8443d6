"""What the commands that run agents make of their options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwire.cli.options import fail

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
    from turnwire.assembly import load_agent
    from turnwire.core.errors import TurnwireError
    from turnwire.server import Turnwire

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
