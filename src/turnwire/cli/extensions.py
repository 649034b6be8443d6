"""`turnwire extensions`: list extensions, check them, and create a new one."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import HelpfulCommand, HelpfulGroup, fail

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

    from turnwire.extensions.calls import ExtensionLimits
    from turnwire.extensions.loader import Loader
    from turnwire.extensions.manifest import discover

    logger, loader = logging.getLogger("turnwire.extensions"), Loader(ExtensionLimits())
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


# The skeleton of a new extension: a channel that streams answers to a file, with its test.

_MANIFEST = """\
id: {id}
name: {title}
version: "0.1.0"
api: "1"
entrypoint: main:{cls}
description: Writes answers to a file while they are made.
provides: [channel, streaming_channel]
# Names of environment variables, never their values:
# secrets: [{{env: {upper}_TOKEN, required: true, description: Where to get it.}}]
config:
  streaming_enabled: true
  file_name: answers.txt
"""

_MAIN = '''\
"""A channel that writes answers to a file. Replace the file by your own transport."""

import asyncio
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from turnwire.extensions.contract import ExtensionContext, StreamingChannel


class {cls}(StreamingChannel):
    class ConfigModel(BaseModel):
        """Validated when the extension is loaded; TURNWIRE_EXTENSION_{upper}_<KEY> sets a value."""

        model_config = ConfigDict(extra="forbid")

        streaming_enabled: bool = True
        file_name: str = "answers.txt"

    async def initialize(self, context: ExtensionContext) -> None:
        await super().initialize(context)
        self._file: Path = context.data_folder / context.get_config("file_name")

    async def start(self) -> None:
        self.context.logger.info("answers go to %s", self._file)

    async def receive(self, text: str, user_id: str) -> str:
        """Call this when a person sends a message. The answer comes back through the methods below."""
        return await self.context.handle_user_message(text, user_id)

    async def send_to_user(self, user_id: str, message: str) -> None:
        await self._write(f"{{user_id}}: {{message}}\\n")

    async def send_message(self, message: str) -> None:
        await self._write(f"{{message}}\\n")

    # Answers while they are made. A class that derives from `Channel` gets whole answers instead.

    async def on_stream_start(self, user_id: str) -> None:
        await self._write(f"{{user_id}}: ")

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        await self._write(chunk)

    async def on_stream_status(self, user_id: str, status: str) -> None:
        self.context.logger.info("%s: %s", user_id, status)

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        await self._write("\\n")

    async def _write(self, text: str) -> None:
        await asyncio.to_thread(self._append, text)

    def _append(self, text: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(text)
'''

_TEST = '''\
"""Run the extension in a real Turnwire, with an agent that needs no model."""

import asyncio
from pathlib import Path

from turnwire import Turn, Turnwire


async def echo(turn: Turn):
    yield "You said: "
    yield turn.message


def test_answer_is_written_to_the_file(tmp_path: Path) -> None:
    async def talk() -> str:
        turnwire = Turnwire(echo, data=tmp_path, extensions=[Path(__file__).parent])
        async with turnwire.lifespan():
            assert turnwire.extensions is not None
            hosted = turnwire.extensions.hosts["{id}"]
            assert hosted.state == "running", hosted.message
            return await hosted.extension.receive("hello", "ann")

    assert asyncio.run(talk()) == "You said: hello"
    written = (tmp_path / "extensions" / "{id}" / "answers.txt").read_text(encoding="utf-8")
    assert written == "ann: You said: hello\\n"
'''


def write_skeleton(id: str, folder: Path) -> list[Path]:
    """Write the skeleton into a new folder and return its files."""
    title = id.replace("_", " ").capitalize()
    names = {"id": id, "title": title, "cls": "".join(map(str.capitalize, id.split("_"))), "upper": id.upper()}
    files = {"manifest.yaml": _MANIFEST, "main.py": _MAIN, f"test_{id}.py": _TEST}
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text.format(**names), encoding="utf-8")
    return [folder / name for name in files]
