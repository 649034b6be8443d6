"""House rules: what is public is complete, and what can be used is written down."""

import ast
import asyncio
import importlib
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path, PurePath
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, get_args

import pytest
import typer.main
from pydantic.fields import FieldInfo

import turnwire
from tests.contracts.stores import STORES
from tests.contracts.wires import WIRES
from tests.test_language import trees
from turnwire import assembly
from turnwire.app import Turnwire
from turnwire.cli.main import app as commands
from turnwire.core import errors, metrics
from turnwire.core.contracts.wires import Control
from turnwire.core.log.events import Event, EventBase
from turnwire.core.log.turn_log import LogLimits
from turnwire.core.people.budget import Limits
from turnwire.plugins import installed, load
from turnwire.retrieval.service import own_documentation
from turnwire.server.api.operations import process_readings, server_readings
from turnwire.settings import PluginSettings, Settings

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "turnwire"
REFERENCE = ROOT / "docs" / "reference"
MODULES = sorted(
    module.name for module in walk_packages(turnwire.__path__, "turnwire.") if "__main__" not in module.name
)


@cache
def reference(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text()


# What is public


def test_every_public_name_is_there_and_listed_once_in_order() -> None:
    assert turnwire.__all__ == sorted(set(turnwire.__all__))
    for name in turnwire.__all__:
        assert getattr(turnwire, name) is not None


def test_the_public_names_are_the_same_for_readers_checkers_and_the_interpreter() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {name.name for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names}
    homes = {name.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert declared == set(turnwire.__all__) == set(turnwire._HOMES)
    assert homes == {name: f"turnwire.{home}" for name, home in turnwire._HOMES.items()}


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Turnwhile'"):
        turnwire.Turnwhile  # noqa: B018


def test_every_module_says_what_it_is_for_and_has_what_it_promises() -> None:
    modules: list[ModuleType] = [importlib.import_module(name) for name in MODULES]
    first_lines = {module.__name__: (module.__doc__ or "").strip().partition("\n")[0] for module in modules}
    assert [name for name, line in first_lines.items() if len(line) <= 10] == []
    promised = [(module, public) for module in modules for public in getattr(module, "__all__", ())]
    assert [(module.__name__, public) for module, public in promised if not hasattr(module, public)] == []


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    document = Turnwire(store="memory").asgi().document
    assert project["version"] == turnwire.__version__ == document["info"]["version"]


def test_every_error_is_in_the_tree_at_the_top_of_its_file() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TurnwireError)
    }
    documented = set(re.findall(r"\w+Error", errors.__doc__ or ""))
    assert documented == classes


def test_every_limit_but_those_of_a_log_is_a_setting_with_the_same_default() -> None:
    limits, settings = Limits(), Settings.model_fields
    for name in Limits.__struct_fields__:
        if name in LogLimits.__struct_fields__:
            assert name not in settings, f"{name} protects the process; no operator sets it"
        else:
            assert settings[name].default == getattr(limits, name), name


def test_the_package_takes_along_the_documentation_that_it_answers_from() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    taken = {ROOT / source: PurePath(target) for source, target in wheel["force-include"].items()}
    assert all(source.exists() for source in taken)
    assert set(own_documentation()) == set(taken)
    # Installed, they lie where they are looked for first.
    home = PurePath("turnwire", "documentation")
    assert {target.relative_to(home).name: source.name for source, target in taken.items()} == {
        "README.md": "README.md",
        "docs": "docs",
    }


def test_no_module_revives_stored_objects_or_evaluates_text() -> None:
    """As LangGraph did (CVE-2025-64439): what is stored or received is data, and calls nothing when it is read."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
    functions = {"eval", "exec", "__import__"}
    found: list[str] = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    used = {name.name.partition(".")[0] for name in names} & modules
                case ast.ImportFrom(module=str(module)):
                    used = {module.partition(".")[0]} & modules
                case ast.Call(func=ast.Name(id=name)):
                    used = {name} & functions
                case ast.Call(func=ast.Attribute(value=ast.Name(id="yaml"), attr="load"), args=[_, loader]):
                    # Its only base is yaml.SafeLoader, which another test checks by what it refuses.
                    used = set() if isinstance(loader, ast.Name) and loader.id == "_YamlLoader" else {"yaml.load"}
                case _:
                    continue
            found += [f"{path.name}: {name}" for name in used]
    assert found == []


# What is under contract


def test_every_store_that_can_be_chosen_is_under_contract() -> None:
    assert {name for plugin in installed().values() for name in plugin.stores} == set(STORES)


def test_every_wire_that_is_served_is_under_contract() -> None:
    served = {name: type(build({})) for name, build in assembly.build_wires().items()}
    on_sockets = {name: type(build("t1")) for name, build in assembly.build_socket_wires().items()}
    assert served | on_sockets == {name: type(wire) for name, wire in WIRES.items()}


# What is written down


@cache
def all_settings() -> dict[str, tuple[str, FieldInfo]]:
    """The settings of the server and `plugin.setting` of the plugins, each with its environment variable."""
    found = {name: (f"TURNWIRE_{name.upper()}", field) for name, field in Settings.model_fields.items()}
    for plugin in installed().values():
        if plugin.settings is not None:
            section: type[PluginSettings] = load(plugin.settings)
            prefix = f"TURNWIRE_{plugin.name.upper()}_"
            found |= {
                f"{plugin.name}.{name}": (f"{prefix}{name.upper()}", field)
                for name, field in section.model_fields.items()
            }
    return found


def test_every_setting_is_documented() -> None:
    page = reference("settings").splitlines()
    for name, (variable, field) in all_settings().items():
        rows = [line for line in page if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1, name
        assert f"`{variable}`" in rows[0], name
        assert field.description, name
        assert field.description in rows[0], name
        if field.default_factory is None:
            assert f"`{field.default!r}`" in rows[0], name


def settings_of_dictionary(node: ast.Dict) -> set[str]:
    """Return the settings of a dictionary that has nothing else: of the kernel, or of the section of one plugin."""
    keys = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    for prefix in ("", *(f"{name}." for name, plugin in installed().items() if plugin.settings is not None)):
        names = {f"{prefix}{key}" for key in keys if prefix or key not in installed()}
        if names <= all_settings().keys():
            return names
    return set()


def test_every_setting_is_set_by_a_test() -> None:
    files = [ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    functions = [
        (outer.name, inner)
        for tree in files
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    # `def serve(**settings)`, or a fixture that returns such a function.
    takers = {name for name, inner in functions if inner.args.kwarg is not None and inner.args.kwarg.arg == "settings"}
    takers |= {"Settings", "read_settings"}
    found: set[str] = set()
    for node in chain.from_iterable(map(ast.walk, files)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in takers:
                found |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
            case ast.Dict():
                found |= settings_of_dictionary(node)
            case ast.Constant(value=str(text)):
                found |= set(re.findall(r"TURNWIRE_[A-Z0-9_]+", text))
            case _:
                pass
    unset = [name for name, (variable, _) in all_settings().items() if not {name, variable} & found]
    assert not unset, f"no test sets {', '.join(unset)}"


def test_no_setting_is_documented_that_there_is_not() -> None:
    documented = re.findall(r"^\| `([\w.]+)` \| `TURNWIRE", reference("settings"), re.MULTILINE)
    assert documented == list(all_settings())


def test_every_event_and_its_fields_are_documented() -> None:
    events: tuple[type[EventBase], ...] = get_args(Event)
    for event in events:
        kind = event.__struct_config__.tag
        rows = [line for line in reference("events").splitlines() if line.startswith(f"| `{kind}` |")]
        assert len(rows) == 1, kind
        assert f"`{event.__name__}`" in rows[0], kind
        for field in event.__struct_fields__:
            assert f"`{field}`" in rows[0] or field == "agent_path", (kind, field)


def test_every_event_class_is_in_the_union() -> None:
    assert set(get_args(Event)) == set(EventBase.__subclasses__())


def test_every_control_frame_is_documented() -> None:
    names = [control.__name__.lower() for control in get_args(Control)]
    assert [name for name in names if f"`{name}`" not in reference("events")] == []


@cache
def routes() -> list[str]:
    paths = Turnwire(store="memory").asgi().document["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


def test_every_route_is_documented() -> None:
    assert [route for route in routes() if f"`{route}`" not in reference("routes")] == []


def test_no_route_is_documented_that_there_is_not() -> None:
    documented = set(re.findall(r"`((?:GET|POST|PATCH|PUT|DELETE) /[^`\s]*)`", reference("routes")))
    assert documented == {*routes(), "GET /docs", "GET /guide/", "GET /openapi.json"}


def every_metric() -> dict[str, str]:
    """The names of all metrics, and what each is said to be."""
    turnwire = Turnwire(store="memory")
    readings = {
        reading.name: reading.help
        for reading in (*asyncio.run(server_readings(turnwire.services)), *process_readings())
    }
    return {**readings, **{metric.name: metric.help for metric in metrics.ALL}}


def test_every_metric_is_documented_and_none_that_there_is_not() -> None:
    documented = dict(
        re.findall(r"^\| `((?:turnwire|process)_\w+)`[^|]*\|[^|]*\| (.*) \|$", reference("metrics"), re.MULTILINE)
    )
    assert documented == every_metric()


def test_every_metric_is_named_as_prometheus_wants_it() -> None:
    for metric in metrics.ALL:
        is_counter = isinstance(metric, metrics.Counter)
        assert re.fullmatch(
            r"turnwire_[a-z_]+_total" if is_counter else r"turnwire_[a-z_]+_(seconds|events)", metric.name
        )
        assert is_counter or list(metric.bounds) == sorted(set(metric.bounds))


@cache
def every_command() -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, command in typer.main.get_command(commands).commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        leaves.update({f"{name} {part}": leaf for part, leaf in below.items()} if below else {name: command})
    return leaves


def test_every_command_and_its_options_are_documented() -> None:
    for name, command in every_command().items():
        rows = [line for line in reference("commands").splitlines() if line.startswith(f"| `turnwire {name}")]
        assert len(rows) == 1, name
        for option in command.params:
            long = max(option.opts, key=len)
            if long.startswith("--") and long not in ("--data", "--help"):
                assert re.search(rf"`{long}[` ]", rows[0]), (name, long)


# Codes of classes that only group others, and of errors that never leave the process.
INTERNAL_CODES = {
    *("turnwire_error", "limit", "fenced", "position_taken", "turn_ended", "disconnected", "restarted"),
    *("turn_taken", "log_rewound"),
}


def error_codes() -> set[str]:
    """The codes of the error classes, and those written out where an error is made."""
    codes = {value.code for value in vars(errors).values() if isinstance(value, type) and hasattr(value, "code")}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                index = {"HttpError": 1, "ErrorEvent": 1}.get(node.func.id)
                if index is not None and len(node.args) > index and isinstance(node.args[index], ast.Constant):
                    codes.add(node.args[index].value)  # type: ignore[attr-defined]
                if node.func.id == "AgentError":
                    values = (word.value for word in node.keywords if word.arg == "code")
                    codes |= {code.value for code in values if isinstance(code, ast.Constant)}  # type: ignore[misc]
    return codes - INTERNAL_CODES


def test_every_error_code_is_documented() -> None:
    assert [code for code in sorted(error_codes()) if f"`{code}`" not in reference("errors")] == []


# The architecture is as its page says

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_that_the_architecture_names_exists() -> None:
    """A name without a folder is in the folder of the name before it, as in `stores/*/writer.py`, `claims.py`."""
    folder, missing = "", list[str]()
    for name in re.findall(r"`([\w/*.]+\.py)`", ARCHITECTURE):
        folder = name.rpartition("/")[0] if "/" in name else folder
        path = name if "/" in name or (SOURCE / name).exists() else f"{folder}/{name}"
        if not any(SOURCE.glob(path)) and not (ROOT / path).exists():
            missing.append(path)
    assert missing == []


def test_the_layers_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [set(layer.split(" | ")) for contract in contracts for layer in contract.get("layers", ())]
    (layers, rooms) = re.findall(r"```\n((?:[a-z_ |]+\n)+)```", ARCHITECTURE.partition("## The layers")[2])
    assert [set(line.split(" | ")) for line in (layers + rooms).splitlines()] == checked


# What is imported is installed

COME_WITH = {
    "anyio": "httpx",
    "httpx2": "mcp",
    "jsonschema": "mcp",
    "langchain-core": "langchain",
    "mcp-types": "mcp",
    "pydantic": "pydantic-settings",
    "pydantic-core": "pydantic-settings",
}
"""Packages that are imported though another one brings them: those two are made for each other."""


def test_every_package_that_is_imported_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(requirement for name in project["optional-dependencies"] for requirement in extra(project, name)),
    ]
    names = {re.split(r"[\[<>=; ]", requirement)[0].lower().replace("_", "-") for requirement in declared}
    distributions = packages_distributions()
    missing: dict[str, str] = {}
    for path, tree in trees().items():
        for module in imported(tree) - {*sys.stdlib_module_names, "turnwire"}:
            owners = {owner.lower().replace("_", "-") for owner in distributions.get(module, [module])}
            if not {COME_WITH.get(owner, owner) for owner in owners} & names:
                missing[module] = str(path)
    assert missing == {}


def test_httpx_has_a_lower_bound_without_which_an_old_pip_finds_no_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    bounds = [requirement for requirement in declared if re.match(r"httpx\b", requirement)]
    assert bounds
    assert all(requirement.startswith("httpx>=") for requirement in bounds)


def extra(project: dict[str, Any], name: str) -> list[str]:
    return [] if name == "dev" else project["optional-dependencies"][name]


def imported(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    whole = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    parts = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in whole | parts}
