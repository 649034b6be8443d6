"""Tests that `deploy/`, its documentation page, the settings and the commands agree."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from turnwire.cli.main import app
from turnwire.server.api import operations
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
    """Return the pods of the Kubernetes file, each with its container."""
    pods = [item["spec"]["template"]["spec"] for item in documents("kubernetes.yaml") if item["kind"] == "Deployment"]
    return [(pod, pod["containers"][0]) for pod in pods]


def test_page_links_every_file_and_quotes_it_literally() -> None:
    texts = [path.read_text() for path in FILES]
    assert [path.name for path in FILES if f"](../deploy/{path.name})" not in PAGE] == []
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    quoted = [block for kind, block in blocks if kind != "sh"]
    assert len(quoted) >= 3
    assert [block for block in quoted if not any(block in text for text in texts)] == []


@pytest.mark.parametrize("path", [*FILES, ROOT / "docs" / "deploy.md"], ids=lambda path: path.name)
def test_named_settings_exist(path: Path) -> None:
    text = path.read_text()
    named = {name.lower() for name in re.findall(r"TURNWIRE_([A-Z_]+)", text)}
    # Names of metrics begin with `turnwire_`.
    quoted_names = {name for name in re.findall(r"`(?!turnwire_)([a-z]+_\w+)`", text) if name not in NOT_SETTINGS}
    assert named | quoted_names <= set(Settings.model_fields)


def test_commands_and_their_options_exist() -> None:
    commands_run = [re.search(r"^ExecStart=\S+ (.*)$", path.read_text(), re.MULTILINE)[1].split() for path in SERVICES]  # type: ignore[index]
    commands_run += [container["args"] for _, container in containers()]
    (compose,) = documents("compose.yaml")
    commands_run += [service["command"] for service in compose["services"].values() if "command" in service]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands_run) == 6
    for name, *options in commands_run:
        known = {flag for option in commands[name].params for flag in option.opts}
        assert {option for option in options if option.startswith("--")} <= known, name


def test_stop_timeouts_exceed_the_shutdown_time() -> None:
    for pod, container in containers():
        env = {item["name"]: float(item["value"]) for item in container["env"]}
        needed = env.get("TURNWIRE_DRAIN_DELAY", 0) + env["TURNWIRE_SHUTDOWN_GRACE"]
        assert needed + 20 <= pod["terminationGracePeriodSeconds"]
    (compose,) = documents("compose.yaml")
    shared = compose["x-turnwire"]
    grace, patience = shared["environment"]["TURNWIRE_SHUTDOWN_GRACE"], shared["stop_grace_period"]
    assert float(grace) + 20 <= float(patience.rstrip("s"))
    for path in SERVICES:
        (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", path.read_text(), re.MULTILINE)
        assert Settings.model_fields["shutdown_grace"].default + 20 <= int(seconds)


def test_probes_use_public_paths_and_an_allowed_host() -> None:
    probes = [container[kind]["httpGet"] for _, container in containers() for kind in container if "Probe" in kind]
    public = {route.path for route in operations.routes() if route.access == "public"}
    assert {probe["path"] for probe in probes} == {"/readyz", "/healthz"} <= public
    assert all(probe["httpHeaders"] == [{"name": "Host", "value": "localhost"}] for probe in probes)
    assert "health_uri /readyz\n" in (DEPLOY / "Caddyfile").read_text()


@pytest.mark.process
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    if (verify := shutil.which("systemd-analyze")) is None:
        # Without systemd only the checks above are possible.
        return
    # systemd checks that the program exists.
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/turnwire/bin/turnwire", sys.executable))
    verified = subprocess.run([verify, "verify", unit], capture_output=True, text=True, timeout=120)
    assert (verified.returncode, path.name in verified.stderr) == (0, False), verified.stderr


def test_dockerfile_copies_what_exists_and_runs_without_root() -> None:
    lines = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text()).splitlines()
    instructions = [
        (kind, text) for line in lines if line and not line.startswith("#") for kind, text in [line.split(maxsplit=1)]
    ]
    kinds = [kind for kind, _ in instructions]
    assert kinds[0] == "FROM"
    # A tag that names a version: what is built today is built tomorrow.
    assert re.fullmatch(r"python:3\.\d+-slim", instructions[0][1])
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for sources in (text.split()[:-1] for kind, text in instructions if kind == "COPY"):
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source not in ignored
    # What the build needs must not be ignored.
    assert not {"pyproject.toml", "hatch_build.py", "README.md", "src", "docs", "constraints.txt"} & set(ignored)
    assert {".git", ".venv", "**/node_modules"} <= set(ignored)
    (install,) = [text for kind, text in instructions if kind == "RUN"]
    assert "pip install --no-cache-dir" in install
    (extras,) = re.findall(r"\[([\w,-]+)\]", install)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert kinds.index("USER") > kinds.index("RUN")
    assert dict(instructions)["USER"] != "root"
    # Exec form: the program gets the signals.
    assert [json.loads(text)[0] for kind, text in instructions if kind in ("ENTRYPOINT", "CMD")] == [
        "turnwire",
        "serve",
    ]
