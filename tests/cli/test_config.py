"""Tests of settings from options, the environment and a TOML file, and of `turnwire serve --config`."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.server_process import run, served
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.tools.mcp_servers import SCRIPT
from turnwire.settings import AgentSettings, read_settings

__all__ = ["model_server"]

SECRET = "sesame-opens-8117"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENTS", "DATA", "HOST", "MCP_SERVERS", "MODEL", "PORT"):
        monkeypatch.delenv(f"TURNWIRE_{name}", raising=False)


def write_config(folder: Path, text: str) -> Path:
    file = folder / "turnwire.toml"
    file.write_text(text)
    return file


def test_options_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config(tmp_path, 'host = "from-file"\nport = 1\nmodel = "from-file"\n')
    monkeypatch.setenv("TURNWIRE_PORT", "2")
    monkeypatch.setenv("turnwire_model", "from-environment")
    monkeypatch.setenv("TURNWIRE_HOST", "")  # An empty variable counts as not set.
    settings = read_settings(file, model="from-option")
    assert (settings.host, settings.port, settings.model) == ("from-file", 2, "from-option")
    assert read_settings(file).model == "from-environment"


def test_file_defines_agents_and_mcp_servers(tmp_path: Path) -> None:
    settings = read_settings(
        write_config(
            tmp_path,
            """
            model = "small"

            [agents]
            parrot = "my_agents:parrot"

            [agents.helper]
            instructions = "Be kind."
            mcp = ["files"]

            [mcp_servers.files]
            command = "files-server"
            args = ["--root", "."]
            env = { KEY = "${FILES_KEY}" }
            """,
        )
    )
    assert list(settings.agents) == ["parrot", "helper"]
    assert isinstance(settings.agents["helper"], AgentSettings)
    assert settings.mcp_servers["files"].env["KEY"].get_secret_value() == "${FILES_KEY}"


def test_environment_replaces_a_whole_setting_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_AGENTS", json.dumps({"second": "b:b"}))
    assert list(read_settings(write_config(tmp_path, '[agents]\nfirst = "a:a"\n')).agents) == ["second"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = ", "is not TOML"),
        ("prot = 1", "prot: Extra inputs are not permitted"),
        ('port = "many"', "port: Input should be a valid integer"),
        ('[agents]\n"a b" = "x:y"', "agents.a b: String should match pattern"),
        ('[agents.a]\nmodel_api = "talk"', "agents.a.model_api: Input should be 'chat' or 'responses'"),
        ("[agents.a]\nmodel = 3", "agents.a.model: Input should be a valid string"),
        ('[agents.a]\nmcp = ["files"]', "the agent 'a' uses the MCP server 'files'; mcp_servers has none"),
        (f'[mcp_servers.f]\nargs = ["{SECRET}"]', "mcp_servers.f: needs either a command that starts it, or its url"),
        (f'[mcp_servers.f]\nurl = "http://{SECRET}"\ncommand = "x"', "mcp_servers.f: needs either a command"),
        (f'[mcp_servers.f]\nurl = "http://x"\nenv = {{ K = "{SECRET}" }}', "mcp_servers.f: args, env and cwd are for"),
        (f'[mcp_servers.f]\ncommand = "x"\nheaders = {{ K = "{SECRET}" }}', "mcp_servers.f: headers are for a url"),
        (f'[mcp_servers.f]\ncommand = "x"\nkey = "{SECRET}"', "mcp_servers.f.key: Extra inputs are not permitted"),
        ('[mcp_servers.f]\nurl = "http://x"\ntype = "sse"', "mcp_servers.f.type: Input should be 'stdio', 'http'"),
    ],
    ids=lambda value: value[:30],
)
def test_invalid_setting_is_named_and_its_value_not_quoted(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_settings(write_config(tmp_path, text))
    assert SECRET not in str(refused.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.toml cannot be read: No such file"):
        read_settings(tmp_path / "nothing.toml")


def test_invalid_json_in_the_environment_is_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_MCP_SERVERS", f'{{"f": {{"env": {{"K": "{SECRET}"')
    with pytest.raises(ValueError, match=r"^TURNWIRE_MCP_SERVERS is not JSON$"):
        read_settings()


@pytest.mark.process
async def test_server_runs_from_a_file_alone(tmp_path: Path, model_server: ScriptedModel) -> None:
    """Run the server in its own process, with the event loop that `serve` chooses."""
    data = tmp_path / "data"
    write_config(
        tmp_path,
        f"""
        model = "small"
        model_url = "{model_server.url}"
        agents.helper.mcp = ["local"]
        mcp_servers.local = {{ command = "{sys.executable}", args = ["{SCRIPT}"] }}
        """,
    )
    model_server.plan(calls(("count", {"to": 2})), says("Two."))
    async with served(data, "--config", "turnwire.toml", "--log-level", "error", agents=["slow"]) as server:
        answer: dict[str, Any] = (await server.http.post("/chat", json={"message": "Count.", "agent": "helper"})).json()
        assert (answer["content"], answer["tools_used"]) == ("Two.", ["count"])
        frames = await server.whole(answer["turn_id"])
        assert [frame.event["text"] for frame in frames if frame.type == "tool_progress"] == ["at 1", "at 2"]
        server.process.terminate()
        await server.process.wait()
        assert await server.errors == b""


@pytest.mark.process
async def test_serve_with_invalid_settings_is_refused_with_a_reason(tmp_path: Path) -> None:
    file = write_config(tmp_path, '[agents.a]\nmcp = ["files"]\n')
    refused = await run("serve", "--config", file, "--port", "0", "--data", tmp_path / "data")
    assert (refused.code, refused.err.strip()) == (
        1,
        "turnwire: the agent 'a' uses the MCP server 'files'; mcp_servers has none",
    )
    refused = await run("serve", "--port", "0", "--data", tmp_path / "data", agents='{"helper": {"tools": ["no:no"]}}')
    assert refused.code == 1
    assert "the agent 'helper' of the settings cannot be made: 'no' cannot be imported" in refused.err
    assert "Traceback" not in refused.err
