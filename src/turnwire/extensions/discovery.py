"""Discovery of extensions in folders, in installed packages and among the bundled channels.

No code of an extension runs here; only its folder and its manifest are read.
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
    """An extension with its manifest, or with the problem of its manifest."""

    id: str
    source: Source
    package: str
    """The package that its modules are imported from."""
    folder: Path | None = None
    manifest: Manifest | None = None
    problem: str = ""


def user_folder() -> Path:
    """Return the folder of the user's own extensions."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "turnwire" / "extensions"


def discover(folders: Sequence[Path]) -> list[FoundExtension]:
    """Return all extensions, one for each id: folders win over packages, and packages over bundled ones."""
    chosen: dict[str, FoundExtension] = {}
    for found in (*_in_folders([*folders, user_folder()]), *_installed(), *_bundled()):
        winner = chosen.setdefault(found.id, found)
        if winner is not found and winner.folder != found.folder:
            logger.warning(
                "the extension %r of %s is hidden by the one of %s", found.id, _location(found), _location(winner)
            )
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
            logger.warning("the extensions folder %s does not exist", folder)


def _installed() -> Iterable[FoundExtension]:
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        try:
            yield _read(point.name, "pip", point.value, _package_folder(point))
        except ManifestError as error:
            yield FoundExtension(id=point.name, source="pip", package=point.value, problem=str(error))


def _package_folder(point: EntryPoint) -> Path:
    # To find a nested package, the outer one would have to be imported.
    if not point.value.isidentifier():
        raise ManifestError(
            f"entry point {point.name!r}: its value is {point.value!r}, and must be the name of a top-level package"
        )
    spec = find_spec(point.value)
    paths = list(spec.submodule_search_locations or ()) if spec else []
    if not paths:
        raise ManifestError(f"entry point {point.name!r}: there is no package {point.value!r}; install it again")
    return Path(paths[0])


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


def _location(found: FoundExtension) -> str:
    return {"pip": f"the package {found.package}", "bundled": "Turnwire"}.get(found.source, str(found.folder))
