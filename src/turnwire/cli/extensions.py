"""`turnwire extensions`: list extensions, check them, and create a new one."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.help import HelpfulCommand, HelpfulGroup
from turnwire.cli.options import fail

if TYPE_CHECKING:
    from turnwire.extensions.host import ExtensionHost

app = typer.Typer(help="List, check and create extensions.", no_args_is_help=True, cls=HelpfulGroup)

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--extensions", metavar="<path>", help="A folder of extensions, or one extension; may be repeated.", exists=True
    ),
]
_MARKS = {
    "failed": ("✗", "red"),
    "unconfigured": ("!", "yellow"),
    "discovered": ("·", "blue"),
    "loaded": ("✓", "green"),
}


@app.command("list", cls=HelpfulCommand)
def list_extensions(extensions: Folders = None) -> None:
    """List the extensions. None of their code runs."""
    for extension in _load(extensions or []):
        _print(extension)


@app.command(cls=HelpfulCommand)
def check(
    names: Annotated[list[str] | None, typer.Argument(help="The extensions' ids; by default all.")] = None,
    extensions: Folders = None,
) -> None:
    """Check manifests, classes and configuration. Modules are imported, but nothing is started."""
    loaded = _load(extensions or [], imports=True)
    ids = [extension.id for extension in loaded]
    if unknown := set(names or []) - set(ids):
        fail(f"there is no extension {', '.join(sorted(unknown))}; choose from {', '.join(ids)}")
    selected = [extension for extension in loaded if not names or extension.id in names]
    for extension in selected:
        _print(extension)
    if any(extension.state == "failed" for extension in selected):
        raise typer.Exit(1)


@app.command(cls=HelpfulCommand)
def new(
    name: Annotated[str, typer.Argument(help="The extension's id: lower-case letters, digits and _.")],
    folder: Annotated[
        Path, typer.Option("--in", help="The parent folder.", show_default="the current folder")
    ] = Path(),
) -> None:
    """Create a small working channel with its manifest and test, in a folder of its name."""
    from turnwire.extensions.manifest import ID
    from turnwire.extensions.skeleton import write_skeleton

    if not ID.fullmatch(name):
        fail(f"{name!r} is not a valid id: use lower-case letters, digits and _, beginning with a letter")
    target = folder / name
    if target.exists():
        fail(f"{target} exists already; choose another name")
    for path in write_skeleton(name, target):
        typer.echo(path)
    typer.secho(
        f"Test it: python -m pytest {target}\n"
        f"Check it: turnwire extensions check {name} --extensions {target}\n"
        f"Run it: turnwire serve --extensions {target}",
        err=True,
    )


def _load(folders: list[Path], *, imports: bool = False) -> "list[ExtensionHost]":
    import logging

    from turnwire.extensions.calls import KernelLimits
    from turnwire.extensions.loader import Loader
    from turnwire.extensions.manifest import discover

    logger, loader = logging.getLogger("turnwire.extensions"), Loader(KernelLimits())
    # The command prints each problem itself.
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        loader.arrange(discover(folders))
        if imports:
            loader.import_all()
    finally:
        logger.setLevel(level)
    return list(loader.hosted.values())


def _print(extension: "ExtensionHost") -> None:
    mark, colour = _MARKS.get(extension.state, ("·", "blue"))
    version = extension.found.manifest.version if extension.found.manifest else "?"
    typer.echo(f"{typer.style(mark, fg=colour)} {extension.id} {version}  {extension.found.source}  {extension.state}")
    for line in _details(extension):
        typer.echo(f"    {line}")


def _details(extension: "ExtensionHost") -> Iterable[str]:
    if extension.found.manifest and extension.found.manifest.description:
        yield extension.found.manifest.description
    if extension.message:
        yield extension.message
    if extension.hint:
        yield f"→ {extension.hint}"
    if extension.provides:
        yield f"provides {', '.join(sorted(extension.provides))}"
    yield from extension.notes
