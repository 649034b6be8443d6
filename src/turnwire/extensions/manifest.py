"""Manifests of extensions, `manifest.yaml`, found and validated before any of their code runs.

    id: notes_channel            # the folder's or the plugin's name
    name: Notes
    version: "0.1.0"
    api: "1"                     # the version of this contract
    entrypoint: main:NotesChannel
    provides: [channel, streaming_channel]
    secrets: [{env: NOTES_TOKEN, required: true, description: …, url: …}]    # names, never values
    config: {streaming_enabled: true, stream_edit_interval_ms: 1200, stream_min_chunk_chars: 20}

`config` holds defaults, which the extension's own `ConfigModel` (pydantic) may validate. Three keys mean the same
everywhere: with `streaming_enabled: false` the kernel gives a streaming channel whole answers;
`stream_edit_interval_ms` and `stream_min_chunk_chars` are for channels that show an answer by editing it.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from msgspec import Struct
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from turnwire.extensions.contract import PROTOCOLS
from turnwire.plugins import installed

logger = logging.getLogger("turnwire.extensions")

API = "1"
FILE_NAME = "manifest.yaml"
MAX_BYTES = 64 * 1024
PRIVATE_PACKAGE = "turnwire_ext"
Source = Literal["folder", "pip", "bundled", "attached"]
ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_ENV = re.compile(r"[A-Z][A-Z0-9_]{1,127}")


class _YamlLoader(yaml.SafeLoader):
    """A loader without numbers to the base of 60, which nobody means: `-1001:42` and `12:30` are text."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(rf"(?!.*:)(?:{pattern.pattern})", pattern.flags) if tag in _NUMBERS else pattern)
        for tag, pattern in resolvers
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str | bytes) -> Any:
    """Read a YAML value. Raises YAMLError and ValueError."""
    return yaml.load(text, _YamlLoader)


class ManifestError(Exception):
    """A manifest is not valid; the message names the file, the field and what to write."""


def _check_id(value: str) -> str:
    if not ID.fullmatch(value):
        raise ValueError("use lower-case letters, digits and _, beginning with a letter")
    if value == "extension":
        # `extension:<id>` is the principal of an extension's own turns, and `<id>:<user>` that of a channel's user.
        raise ValueError("this name is reserved")
    return value


def _check_env(value: str) -> str:
    # The keys of some providers are upper case too, but long, with digits and without an underscore.
    is_token = len(value) >= 16 and "_" not in value and any(map(str.isdigit, value))
    if is_token or not _ENV.fullmatch(value):
        raise ValueError(
            "this is not the name of an environment variable; write a name such as MY_TOKEN, never a secret"
        )
    return value


def _check_entrypoint(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        raise ValueError("write module:Class, such as main:MyExtension")
    return value


def _check_kind(value: str) -> str:
    if value not in PROTOCOLS:
        raise ValueError(f"there is no {value!r}; there is {', '.join(PROTOCOLS)}")
    return value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ExtensionId = Annotated[str, AfterValidator(_check_id)]


class _Strict(BaseModel):
    # A value may be a secret in the wrong field: errors must not repeat it.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Secret(_Strict):
    env: Annotated[str, AfterValidator(_check_env)]
    required: bool = True
    description: str = ""
    url: str | None = None


class Manifest(_Strict):
    id: ExtensionId
    name: str = Field(min_length=1, max_length=100)
    version: Annotated[str, BeforeValidator(_text)]
    api: Annotated[str, BeforeValidator(_text)]
    entrypoint: Annotated[str, AfterValidator(_check_entrypoint)]
    description: str = ""
    depends_on: tuple[ExtensionId, ...] = ()
    after: tuple[ExtensionId, ...] = ()
    requires: tuple[str, ...] = ()
    provides: tuple[Annotated[str, AfterValidator(_check_kind)], ...] = ()
    secrets: tuple[Secret, ...] = ()
    config: dict[str, Any] = {}
    enabled: bool | Literal["auto"] = "auto"


def read_manifest(path: Path, expected_id: str) -> Manifest:
    """Read and validate a manifest. Raises ManifestError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ManifestError(f"{path}: a manifest has at most {MAX_BYTES // 1024} KiB")
        fields: Any = load_yaml(path.read_bytes())
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ManifestError(f"{path}{where}: this is not YAML: {getattr(error, 'problem', None) or error}") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: this is not YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ManifestError(f"{path}: it must have fields, such as `id: {expected_id}`")
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        raise ManifestError(f"{path}: {'; '.join(problems(error))}") from error
    if manifest.id != expected_id:
        raise ManifestError(f"{path}: id: is {manifest.id!r}, but it is found as {expected_id!r}; give both one name")
    if manifest.api != API:
        raise ManifestError(f"{path}: api: is {manifest.api!r}, and this Turnwire supports {API!r} only")
    return manifest


def problems(error: ValidationError) -> list[str]:
    """Return the problem of each invalid field, without its value."""
    messages = {
        "extra_forbidden": "there is no such field",
        "missing": "is missing",
        "string_type": "must be a text; put it in quotes",
    }
    return [
        f"{'.'.join(map(str, detail['loc'])) or 'it'}: "
        + messages.get(detail["type"], detail["msg"].removeprefix("Value error, "))
        for detail in error.errors(include_url=False, include_context=False, include_input=False)
    ]


# Discovery. No code of an extension runs here; only its folder and its manifest are read.


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


def discover(
    folders: Sequence[Path], may_run: Callable[[FoundExtension], bool] = lambda _: True
) -> list[FoundExtension]:
    """Return all extensions, one for each id: folders win over plugins.

    An extension that may not run hides no other one of its id.
    """
    chosen: dict[str, FoundExtension] = {}
    for found in (*_in_folders([*folders, user_folder()]), *_of_plugins()):
        winner = chosen.setdefault(found.id, found)
        if winner is not found and not may_run(winner) and may_run(found):
            chosen[found.id] = found
        elif winner is not found and winner.folder != found.folder:
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


def _of_plugins() -> Iterable[FoundExtension]:
    for plugin in installed().values():
        if plugin.channel is None:
            continue
        source: Source = "bundled" if plugin.channel.startswith("turnwire.") else "pip"
        folder = _package_folder(plugin.channel)
        if folder is None:
            problem = f"plugin {plugin.name!r}: there is no package {plugin.channel!r}; install it again"
            yield FoundExtension(id=plugin.name, source=source, package=plugin.channel, problem=problem)
        else:
            yield _read(plugin.name, source, plugin.channel, folder)


def _package_folder(package: str) -> Path | None:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # The outer package of a nested one is missing.
        return None
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


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
