"""Public names of the package, read from the package itself: signatures, fields, settings, commands, import paths."""

import ast
import importlib
import inspect
import json
import logging
import pathlib
import pkgutil
import re
import typing
from collections import abc
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pydantic
import typer
import typer.main

import turnwire

ROOT = Path(__file__).parents[2]
_MODULE = re.compile(r"(?<![\w.])(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)")
_ELSEWHERE = (typing, abc, logging, pathlib, msgspec, re, inspect)


def plain(text: str) -> str:
    """A signature or type without the modules that its names come from, which may change."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"<(?:class|enum|function) '?([\w.]+)'?>", r"\1", text)
    text = re.sub(r"ForwardRef\('([^']+)'[^)]*\)", r"\1", text)
    text = _MODULE.sub(r"\1", text).replace("NoneType", "None")
    # The union of all events by its name, as it may be written either way.
    text = re.sub(r"SessionEvent \| MessageEvent(?: \| \w+Event)*", "Event", text)
    text = re.sub(r"Union\[FunctionTool\b.*\]\]", "<tools of the SDK>]", text)
    return re.sub(r"= _\w+", "= <private>", text)


def signature(function: Any) -> str:
    return plain(str(inspect.signature(function)).replace("'", ""))


def public_names(module: ModuleType) -> list[str]:
    """Return the names that `__all__` lists; without one, those that the module does not take from elsewhere."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    found: list[str] = []
    for name, value in vars(module).items():
        is_taken = any(getattr(other, name, None) is value for other in _ELSEWHERE)
        is_listed_elsewhere = name in importlib.import_module("turnwire.tools").__all__
        if not (name.startswith("_") or isinstance(value, ModuleType) or is_taken or is_listed_elsewhere):
            found.append(name)
    return sorted(found)


def described(name: str, value: Any) -> Iterator[str]:
    """A line for a name, and one for each field and method that it has."""
    if not isinstance(value, type):
        yield (
            f"{name}{signature(value)}" if callable(value) and not _is_alias(value) else f"{name} = {plain(str(value))}"
        )
        return
    bases = [base.__name__ for base in value.__mro__[1:] if base.__name__ in ("Struct", "Exception", "Protocol")]
    yield f"class {name}{'(' + ', '.join(bases) + ')' if bases else ''}"
    if issubclass(value, msgspec.Struct):
        yield from (f"  {line}" for line in struct_lines(value))
    elif "__init__" in vars(value) and not getattr(value, "_is_protocol", False):
        yield f"  __init__{signature(value.__init__)}"
    yield from (f"  {line}" for line in method_lines(value))


def _is_alias(value: Any) -> bool:
    return typing.get_origin(value) is not None


def struct_lines(struct: type[msgspec.Struct]) -> Iterator[str]:
    config = struct.__struct_config__
    if config.tag is not None:
        yield f"tag {config.tag_field}={config.tag}"
    yield f"frozen={config.frozen} omit_defaults={config.omit_defaults} signature{signature(struct)}"
    for field in msgspec.structs.fields(struct):
        if field.default is not msgspec.NODEFAULT:
            default = f" = {field.default!r}"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = f" = made: {field.default_factory()!r}"
        else:
            default = ""
        yield f"{field.encode_name}: {plain(str(field.type))}{plain(default)}"


def method_lines(kind: type) -> Iterator[str]:
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is object or base.__module__.partition(".")[0] != "turnwire":
            continue
        for name, value in vars(base).items():
            if name.startswith("_"):
                continue
            function = getattr(value, "__func__", value)
            if inspect.isfunction(function):
                how = "async " if inspect.iscoroutinefunction(function) else ""
                found[name] = f"{how}{name}{signature(function)}"
            elif isinstance(value, property) and value.fget is not None:
                found[name] = f"property {name}{signature(value.fget)}"
    yield from (found[name] for name in sorted(found))


# Imports that documents and examples show


def documented_imports() -> set[str]:
    """Each import of ours in a Markdown code block or an example, as one statement for each name."""
    found: set[str] = set()
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*"), *ROOT.glob("examples/**/*")]:
        if path.suffix == ".py":
            found |= _imports(path.read_text())
        elif path.suffix == ".md":
            for block in re.findall(r"^```(?:python|py)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
                found |= _imports(block)
    return found


def _imports(source: str) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        # A block that is not whole: its import lines are.
        lines = re.findall(r"^(?:from turnwire\S* import .*|import turnwire\S*)$", source, re.MULTILINE)
        nodes = list(ast.walk(ast.parse("\n".join(lines))))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "turnwire":
            found |= {f"from {node.module} import {name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"import {name.name}" for name in node.names if name.name.partition(".")[0] == "turnwire"}
    return found


def works(statement: str) -> bool:
    words = statement.split()
    try:
        module = importlib.import_module(words[1])
    except ImportError:
        return False
    return words[0] == "import" or hasattr(module, words[3])


def import_everything() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(turnwire.__path__, "turnwire.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


# Settings and manifests


def without_words(schema: Any) -> Any:
    """A JSON schema without titles and descriptions."""
    if isinstance(schema, dict):
        worded = {"description", "summary"}
        kept = {name: value for name, value in schema.items() if name not in worded or not isinstance(value, str)}
        if isinstance(kept.get("title"), str) and ("type" in kept or "anyOf" in kept or "$ref" in kept):
            kept.pop("title")
        return {name: without_words(value) for name, value in kept.items()}
    return [without_words(value) for value in schema] if isinstance(schema, list) else schema


def setting_lines(settings: type[pydantic.BaseModel]) -> Iterator[str]:
    """Each setting on a line: its name (which is its TOML key), its environment variable, its default, its form."""
    schema = without_words(settings.model_json_schema())
    prefix = settings.model_config.get("env_prefix", "")
    for name, field in settings.model_fields.items():
        default = "made" if field.default_factory is not None else repr(field.default)
        form = {key: value for key, value in schema["properties"][name].items() if key != "default"}
        yield f"{name} | {prefix}{name.upper()} | {default} | {json.dumps(form, sort_keys=True)}"
    for kind, parts in sorted(schema.get("$defs", {}).items()):
        required = set(parts.get("required", ()))
        for name, form in parts.get("properties", {}).items():
            need = "required" if name in required else "optional"
            yield f"{kind}.{name} | {need} | {json.dumps(form, sort_keys=True)}"
        yield f"{kind} | other fields: {parts.get('additionalProperties', 'taken')}"


def manifest_model() -> type[pydantic.BaseModel]:
    """The model of `manifest.yaml`, wherever it is."""
    wanted = {"id", "api", "entrypoint", "provides", "secrets"}
    for module in import_everything():
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, pydantic.BaseModel) and wanted <= set(value.model_fields):
                return value
    raise LookupError("there is no model of a manifest")


# Commands


def command_lines(monkeypatch: Any) -> list[str]:
    """The names of all commands, arguments and options, from what the installed program runs."""
    apps: list[typer.Typer] = []
    with monkeypatch.context() as patch:
        patch.setattr(typer.Typer, "__call__", lambda self, *args, **options: apps.append(self))
        (program,) = entry_points(group="console_scripts", name="turnwire")
        program.load()()
    found: list[str] = []
    _add_commands("turnwire", typer.main.get_command(apps[0]), found)
    return found


def _add_commands(path: str, command: Any, found: list[str]) -> None:
    for name, below in getattr(command, "commands", {}).items():
        _add_commands(f"{path} {name}", below, found)
    if not hasattr(command, "commands"):
        found.append(path)
    for param in command.params:
        flags = " / ".join([*param.opts, *param.secondary_opts])
        is_many = getattr(param, "multiple", False) or param.nargs != 1
        traits = [
            trait
            for trait, holds in (
                ("argument", param.param_type_name == "argument"),
                ("required", param.required),
                ("repeatable", is_many),
                ("flag", getattr(param, "is_flag", False)),
            )
            if holds
        ]
        found.append(f"{path} {flags}" + (f" ({', '.join(traits)})" if traits else ""))
