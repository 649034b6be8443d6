"""Where extensions are: in folders, in installed packages, and among the channels that come with Turnwire.

Nothing of an extension runs here; its folder and its manifest are all that is looked at.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

from turnwire.extensions.manifest import FILE_NAME, Manifest, ManifestError, read_manifest

logger = logging.getLogger("turnwire.extensions")

ENTRY_POINT_GROUP = "turnwire.extensions"
PRIVATE_PACKAGE = "turnwire_ext"
Source = Literal["folder", "pip", "bundled", "given"]


class FoundExtension(Struct, frozen=True, kw_only=True):
    """An extension that is there, with its manifest, or with what is wrong with it."""

    id: str
    source: Source
    package: str
    """What its modules are imported as."""
    folder: Path | None = None
    manifest: Manifest | None = None
    problem: str = ""


def user_folder() -> Path:
    """Where a user's own extensions are looked for."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "turnwire" / "extensions"


def discover(folders: Sequence[Path]) -> list[FoundExtension]:
    """All there are, one of each id: a folder's before an installed one before a bundled one."""
    chosen: dict[str, FoundExtension] = {}
    for found in (*_in_folders([*folders, user_folder()]), *_installed(), *_bundled()):
        winner = chosen.setdefault(found.id, found)
        if winner is not found and winner.folder != found.folder:
            logger.warning("the extension %r of %s is hidden by the one of %s", found.id, _place(found), _place(winner))
    return list(chosen.values())


def _in_folders(folders: Iterable[Path]) -> Iterable[FoundExtension]:
    for folder in folders:
        if (folder / FILE_NAME).is_file():
            yield _read(folder.resolve().name, "folder", f"{PRIVATE_PACKAGE}.{folder.resolve().name}", folder.resolve())
        elif folder.is_dir():
            for path in sorted(folder.iterdir()):
                if (path / FILE_NAME).is_file():
                    yield _read(path.name, "folder", f"{PRIVATE_PACKAGE}.{path.name}", path.resolve())
        elif folder != user_folder():
            logger.warning("there is no folder %s to look for extensions in", folder)


def _installed() -> Iterable[FoundExtension]:
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        try:
            yield _read(point.name, "pip", point.value, _package_folder(point))
        except ManifestError as error:
            yield FoundExtension(id=point.name, source="pip", package=point.value, problem=str(error))


def _package_folder(point: EntryPoint) -> Path:
    # Of a package inside another one the outer would be run, just to find it.
    if not point.value.isidentifier():
        raise ManifestError(
            f"entry point {point.name!r}: its value is {point.value!r}, and must be the name of a top-level package"
        )
    spec = find_spec(point.value)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise ManifestError(f"entry point {point.name!r}: there is no package {point.value!r}; install it again")
    return Path(places[0])


def _bundled() -> Iterable[FoundExtension]:
    channels = Path(__file__).parents[1] / "channels"
    for path in sorted(channels.iterdir()) if channels.is_dir() else ():
        if (path / FILE_NAME).is_file():
            yield _read(path.name, "bundled", f"turnwire.channels.{path.name}", path)


def _read(expected_id: str, source: Source, package: str, folder: Path) -> FoundExtension:
    manifest, problem = None, ""
    try:
        manifest = read_manifest(folder / FILE_NAME, expected_id)
    except ManifestError as error:
        problem = str(error)
    return FoundExtension(
        id=expected_id, source=source, package=package, folder=folder, manifest=manifest, problem=problem
    )


def _place(found: FoundExtension) -> str:
    return {"pip": f"the package {found.package}", "bundled": "Turnwire"}.get(found.source, str(found.folder))
