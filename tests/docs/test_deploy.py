"""What is in `deploy/` and what its page says are the same, and fit the settings and commands there are."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from turnwire.cli import app
from turnwire.server.app import PUBLIC_PATHS
from turnwire.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deploy.md").read_text()
FILES = sorted(path for path in DEPLOY.iterdir() if path.suffix != ".dockerignore")
NOT_SETTINGS = {"shutting_down"}
SERVICES = sorted(DEPLOY.glob("*.service"))


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def containers() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The pods of the Kubernetes file, each with its container."""
    pods = [one["spec"]["template"]["spec"] for one in documents("kubernetes.yaml") if one["kind"] == "Deployment"]
    return [(pod, pod["containers"][0]) for pod in pods]


def test_the_page_names_every_file_and_quotes_them_as_they_are() -> None:
    texts = [path.read_text() for path in FILES]
    assert [path.name for path in FILES if f"](../deploy/{path.name})" not in PAGE] == []
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    quoted = [block for kind, block in blocks if kind != "sh"]
    assert len(quoted) >= 3
    assert [block for block in quoted if not any(block in text for text in texts)] == []


@pytest.mark.parametrize("path", [*FILES, ROOT / "docs" / "deploy.md"], ids=lambda path: path.name)
def test_every_setting_that_is_named_is_one(path: Path) -> None:
    text = path.read_text()
    named = {name.lower() for name in re.findall(r"TURNWIRE_([A-Z_]+)", text)}
    told = {name for name in re.findall(r"`([a-z]+_\w+)`", text) if name not in NOT_SETTINGS}
    assert named | told <= set(Settings.model_fields)


def test_every_command_is_one_and_has_these_options() -> None:
    called = [re.search(r"^ExecStart=\S+ (.*)$", path.read_text(), re.MULTILINE)[1].split() for path in SERVICES]  # type: ignore[index]
    called += [container["args"] for _, container in containers()]
    (compose,) = documents("compose.yaml")
    called += [service["command"] for service in compose["services"].values() if "command" in service]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(called) == 6
    for name, *options in called:
        known = {flag for option in commands[name].params for flag in option.opts}
        assert {option for option in options if option.startswith("--")} <= known, name


def test_whoever_stops_it_waits_longer_than_it_may_take() -> None:
    for pod, container in containers():
        env = {one["name"]: float(one["value"]) for one in container["env"]}
        needed = env.get("TURNWIRE_DRAIN_DELAY", 0) + env["TURNWIRE_SHUTDOWN_GRACE"]
        assert needed + 20 <= pod["terminationGracePeriodSeconds"]
    (compose,) = documents("compose.yaml")
    shared = compose["x-turnwire"]
    grace, patience = shared["environment"]["TURNWIRE_SHUTDOWN_GRACE"], shared["stop_grace_period"]
    assert float(grace) + 20 <= float(patience.rstrip("s"))
    for path in SERVICES:
        (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", path.read_text(), re.MULTILINE)
        assert Settings.model_fields["shutdown_grace"].default + 20 <= int(seconds)


def test_probes_ask_what_needs_no_key_under_a_name_that_is_always_allowed() -> None:
    probes = [container[kind]["httpGet"] for _, container in containers() for kind in container if "Probe" in kind]
    assert {probe["path"] for probe in probes} == {"/readyz", "/healthz"} <= PUBLIC_PATHS
    assert all(probe["httpHeaders"] == [{"name": "Host", "value": "localhost"}] for probe in probes)
    assert "health_uri /readyz\n" in (DEPLOY / "Caddyfile").read_text()


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_systemd_takes_the_units(path: Path, tmp_path: Path) -> None:
    if (verify := shutil.which("systemd-analyze")) is None:
        # Where there is no systemd, nobody runs a unit either; what can be checked without it is above.
        return
    # It looks whether the program is there.
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/turnwire/bin/turnwire", sys.executable))
    found = subprocess.run([verify, "verify", unit], capture_output=True, text=True, timeout=30)
    assert (found.returncode, path.name in found.stderr) == (0, False), found.stderr
