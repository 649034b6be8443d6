"""`turnwire extensions`: what there is, whether it is right, and a beginning for one of your own."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import fail

if TYPE_CHECKING:
    from turnwire.extensions.host import ExtensionHost

app = typer.Typer(help="List, check and begin extensions.", no_args_is_help=True)

Folders = Annotated[
    list[Path] | None,
    typer.Option("--extensions", help="A folder of extensions, or one extension; may be repeated.", exists=True),
]
_MARKS = {
    "failed": ("✗", "red"),
    "unconfigured": ("!", "yellow"),
    "discovered": ("·", "blue"),
    "loaded": ("✓", "green"),
}


@app.command("list")
def list_extensions(extensions: Folders = None) -> None:
    """List the extensions there are. None of their code is run."""
    for hosted in _arranged(extensions or []):
        _show(hosted)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Their ids; all there are by default.")] = None,
    extensions: Folders = None,
) -> None:
    """Check manifests, classes and configuration without starting anything. Their modules are imported."""
    wanted = set(names or [])
    hosted = _arranged(extensions or [], imports=True)
    if unknown := wanted - {one.id for one in hosted}:
        fail(f"there is no extension {', '.join(sorted(unknown))}; there is {', '.join(one.id for one in hosted)}")
    chosen = [one for one in hosted if not wanted or one.id in wanted]
    for one in chosen:
        _show(one)
    if any(one.state == "failed" for one in chosen):
        raise typer.Exit(1)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Its id: lower-case letters, digits and _.")],
    folder: Annotated[
        Path | None, typer.Option("--in", help="Where its folder is made; your own extensions' folder by default.")
    ] = None,
) -> None:
    """Write a small channel that works, with its manifest and its test."""
    from turnwire.extensions.discovery import user_folder
    from turnwire.extensions.manifest import ID
    from turnwire.extensions.skeleton import write_skeleton

    if not ID.fullmatch(name):
        fail(f"{name!r} cannot be an id: use lower-case letters, digits and _, beginning with a letter")
    target = (folder or user_folder()) / name
    if target.exists():
        fail(f"{target} is there already; choose another name")
    for path in write_skeleton(name, target):
        typer.echo(path)
    typer.secho(
        f"Test it: python -m pytest {target}\n"
        f"Check it: turnwire extensions check {name}{'' if folder is None else f' --extensions {folder}'}",
        err=True,
    )


def _arranged(folders: list[Path], *, imports: bool = False) -> "list[ExtensionHost]":
    import logging

    from turnwire.extensions.calls import KernelLimits
    from turnwire.extensions.discovery import discover
    from turnwire.extensions.loader import Loader

    logger, loader = logging.getLogger("turnwire.extensions"), Loader(KernelLimits())
    # What is wrong is told by whoever asked for this, once.
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        loader.arrange(discover(folders))
        if imports:
            loader.import_all()
    finally:
        logger.setLevel(level)
    return list(loader.hosted.values())


def _show(hosted: "ExtensionHost") -> None:
    mark, colour = _MARKS.get(hosted.state, ("·", "blue"))
    version = hosted.found.manifest.version if hosted.found.manifest else "?"
    typer.echo(f"{typer.style(mark, fg=colour)} {hosted.id} {version}  {hosted.found.source}  {hosted.state}")
    for line in _details(hosted):
        typer.echo(f"    {line}")


def _details(hosted: "ExtensionHost") -> Iterable[str]:
    if hosted.found.manifest and hosted.found.manifest.description:
        yield hosted.found.manifest.description
    if hosted.message:
        yield hosted.message
    if hosted.hint:
        yield f"→ {hosted.hint}"
    if hosted.provides:
        yield f"provides {', '.join(sorted(hosted.provides))}"
    yield from hosted.notes
