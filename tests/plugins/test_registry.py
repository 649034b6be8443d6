"""The registry finds plugins by their entry points, and imports their parts when they are needed."""

import ast
import logging
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from turnwire import plugins
from turnwire.plugins import GROUPS, Plugin, Reference, Service, installed, load
from turnwire.settings import PluginSettings

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
PYTEST = ROOT / "src" / "turnwire" / "testing" / "plugin.py"
FILES = sorted({*(ROOT / "src" / "turnwire").glob("**/plugin.py")} - {PYTEST})


def references(plugin: Plugin) -> Iterator[Reference]:
    yield from (kind.adapter for kind in plugin.kinds)
    yield from (kind.hook for kind in plugin.kinds if kind.hook)
    yield from (*plugin.routes, *plugin.wires.values(), *plugin.socket_wires.values(), *plugin.stores.values())
    yield from (part for part in (plugin.settings, plugin.service, plugin.commands, plugin.checks, plugin.move) if part)


def test_every_plugin_file_is_an_entry_point_of_its_package_name() -> None:
    values = {value: name for group in GROUPS for name, value in DECLARED.get(group, {}).items()}
    modules = [str(file.relative_to(ROOT / "src").with_suffix("")).replace("/", ".") for file in FILES]
    assert set(values) == {f"{module}:plugin" for module in modules}
    assert set(installed()) >= set(values.values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_plugin_file_imports_the_declaration_alone(file: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [getattr(node, "module", None) for node in imports] == ["turnwire.plugins"]


@pytest.mark.parametrize("plugin", installed().values(), ids=lambda plugin: plugin.name)
def test_every_reference_of_a_plugin_can_be_imported(plugin: Plugin) -> None:
    for reference in references(plugin):
        assert callable(load(reference)), reference
    if plugin.settings is not None:
        kind = load(plugin.settings)
        assert issubclass(kind, PluginSettings)
        assert kind.model_config.get("env_prefix") == f"TURNWIRE_{plugin.name.upper()}_"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The entry points of the wires, by name; those of other groups are not there."""
    points: dict[str, str] = {}

    def entry_points(*, group: str) -> EntryPoints:
        found = points.items() if group == "turnwire.wires" else ()
        return EntryPoints(EntryPoint(name, value, group) for name, value in found)

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    installed.cache_clear()
    yield points
    installed.cache_clear()


def test_plugin_that_cannot_be_imported_is_logged_and_left_out(
    registered: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    registered |= {"gone": "turnwire.no_such.plugin:plugin", "wrong": "turnwire.plugins:GROUPS"}
    registered["a2a"] = "turnwire.wires.a2a.plugin:plugin"
    with caplog.at_level(logging.WARNING):
        assert list(installed()) == ["a2a"]
    assert "the plugin gone (turnwire.no_such.plugin:plugin) cannot be loaded" in caplog.text
    assert "the plugin wrong is left out" in caplog.text


def test_second_plugin_of_a_name_is_left_out(registered: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    registered |= {"a2a": "turnwire.wires.a2a.plugin:plugin", "again": "turnwire.wires.a2a.plugin:plugin"}
    assert list(installed()) == ["a2a"]
    assert "there is one of that name" in caplog.text


def test_part_whose_package_is_missing_names_the_plugin_and_the_command() -> None:
    plugin = Plugin(name="x", description="agents of X", extra="turnwire[x]", service="no_such_package:Service")
    with pytest.raises(ImportError, match=r"agents of X needs packages .*pip install 'turnwire\[x\]'"):
        plugin.load("no_such_package:Service")


async def test_service_without_methods_of_its_own_does_nothing() -> None:
    service: Any = Service()
    assert [await service.open(), await service.start(), await service.stop(), await service.close()] == [None] * 4
    assert service.agents() == {}


def test_plugins_are_those_that_are_checked_and_documented() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (checked,) = (contract["modules"] for contract in contracts if contract["id"] == "plugins")
    packages = {value.partition(".plugin:")[0] for group in GROUPS for value in DECLARED[group].values()}
    stores = {package for package in packages if package.startswith("turnwire.stores.")}
    assert set(checked) == packages - stores
    page = (ROOT / "docs" / "plugins.md").read_text()
    for group in GROUPS:
        for value in DECLARED[group].values():
            plugin = load(value)
            folder = f"src/{value.partition('.plugin:')[0].replace('.', '/')}/"
            assert f"| `{plugin.name}` | `{group}` | {plugin.description} | `{folder}` |" in page


def test_examples_import_the_modules_that_the_guide_lists() -> None:
    guide = (ROOT / "docs" / "guides" / "plugins.md").read_text()
    table = guide.partition("## What to import")[2].partition("\n## ")[0]
    listed = {module for row in re.findall(r"^\| (`turnwire.*?) \|", table, re.MULTILINE) for module in row.split(", ")}
    listed = {module.strip("`") for module in listed}
    for module in listed:
        import_module(module)
    files = (ROOT / "docs" / "examples" / "plugins").rglob("*.py")
    imports = {module for file in files for module in re.findall(r"^from (turnwire[\w.]*)", file.read_text(), re.M)}
    assert {module for module in imports if module.partition(".")[0] == "turnwire"} <= listed
