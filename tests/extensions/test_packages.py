"""Extensions that installed and editable packages declare as plugins."""

import site
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.harness import BASE, running, write_extension
from tests.serving import quick_settings, saying
from turnwire import Turnwire
from turnwire.plugins import installed


def make_package(folder: Path, id: str = "weather", package: str = "turnwire_weather", **manifest: str) -> Path:
    """Write the source of a distribution: a package with a manifest and a plugin."""
    code = "from .deep import Main\nRUN = True"
    source = write_extension(folder, id, code, **manifest)
    (source / "deep.py").write_text(BASE + "class Main(Base): ...")
    (source / "__init__.py").write_text("")
    write_plugin(source / "plugin.py", id, package)
    return source.rename(folder / package)


def write_plugin(file: Path, id: str, channel: str) -> None:
    declaration = f"Plugin(name={id!r}, description='a channel', channel={channel!r})"
    file.write_text(f"from turnwire.plugins import Plugin\n\nplugin = {declaration}\n")


def note_installation(where: Path, id: str, package: str, module: str = "turnwire_weather.plugin") -> None:
    """Write the metadata that pip writes beside a package."""
    noted = where / f"{package}-1.0.dist-info"
    noted.mkdir(parents=True)
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (noted / "entry_points.txt").write_text(f"[turnwire.channels]\n{id} = {module}:plugin\n")
    (noted / "RECORD").write_text("")
    installed.cache_clear()


@pytest.fixture
def site_folder(tmp_path: Path) -> Iterator[Path]:
    """The folder that packages are installed in for this test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
        (tmp_path / "site").mkdir()
        (tmp_path / "x").mkdir()
        yield tmp_path / "site"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("turnwire_weather", "weather_plugin")]:
        del sys.modules[name]
    installed.cache_clear()
    installed()


async def test_installed_extension_runs(site_folder: Path, tmp_path: Path) -> None:
    make_package(site_folder)
    note_installation(site_folder, "weather", "turnwire_weather")
    async with running(tmp_path / "x", saying()) as kernel:
        assert kernel["weather"].state == "running", kernel["weather"].message
        assert kernel["weather"].found.source == "pip"
        assert type(kernel.extension("weather")).__module__ == "turnwire_weather.deep"


async def test_editable_extension_runs(site_folder: Path, tmp_path: Path) -> None:
    make_package(tmp_path / "src")
    (site_folder / "weather.pth").write_text(str(tmp_path / "src"))
    site.addsitedir(str(site_folder))
    note_installation(site_folder, "weather", "turnwire_weather")
    async with running(tmp_path / "x", saying()) as kernel:
        assert kernel["weather"].state == "running", kernel["weather"].message
        assert kernel["weather"].found.folder == tmp_path / "src" / "turnwire_weather"


async def test_discovery_of_a_package_imports_its_declaration_alone(site_folder: Path, tmp_path: Path) -> None:
    make_package(site_folder, api="9")
    note_installation(site_folder, "weather", "turnwire_weather")
    async with running(tmp_path / "x", saying()) as kernel:
        assert kernel["weather"].state == "failed"
        assert "api: is '9'" in kernel["weather"].message
    assert {name for name in sys.modules if name.startswith("turnwire_weather.")} == {"turnwire_weather.plugin"}


async def test_folder_wins_over_a_package_with_the_same_id(
    site_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_package(site_folder)
    note_installation(site_folder, "weather", "turnwire_weather")
    write_extension(tmp_path / "x", "weather")
    async with running(tmp_path / "x", saying()) as kernel:
        assert kernel["weather"].found.source == "folder"
    assert "the extension 'weather' of the package turnwire_weather is hidden by" in caplog.text


@pytest.mark.parametrize("package", ["nowhere_at_all", "nowhere.at_all", "os.path"])
async def test_plugin_without_its_package_is_reported(package: str, site_folder: Path, tmp_path: Path) -> None:
    write_plugin(site_folder / "weather_plugin.py", "weather", package)
    note_installation(site_folder, "weather", "weather_plugin", "weather_plugin")
    async with running(tmp_path / "x", saying()) as kernel:
        assert kernel["weather"].state == "failed"
        assert "there is no package" in kernel["weather"].message


async def test_only_extensions_that_are_named_run(
    site_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of the user's folder and of packages is found and not run; that of a given folder runs."""
    make_package(site_folder)
    note_installation(site_folder, "weather", "turnwire_weather")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own, chosen = tmp_path / "config" / "turnwire" / "extensions", tmp_path / "given"
    write_extension(own, "stray", "raise AssertionError('it was run')")
    write_extension(own, "telegram", "raise AssertionError('it was run')")
    write_extension(chosen, "chosen", BASE + "class Main(Base): ...")
    for allowed, states in (([], ("unconfigured", "running")), (["weather"], ("running", "running"))):
        settings = quick_settings(tmp_path / f"data{len(allowed)}", allowed_extensions=allowed)
        turnwire = Turnwire(saying(), store="memory", settings=settings, extensions=[chosen])
        await turnwire.open()
        try:
            assert turnwire.extensions is not None
            found = turnwire.extensions.hosts
            assert (found["weather"].state, found["chosen"].state) == states
            assert found["stray"].state == "unconfigured"
            assert "TURNWIRE_ALLOWED_EXTENSIONS" in found["stray"].hint
            assert found["telegram"].found.source == "bundled", "what does not run hides nothing"
        finally:
            await turnwire.close()
