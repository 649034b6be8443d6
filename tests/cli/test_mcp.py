"""`turnwire mcp`: wrong usage, and the missing extra."""

import sys

import pytest
from typer.testing import CliRunner

from turnwire.cli.main import app


def test_missing_extra_ends_the_command_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("server", "stdio"):
        monkeypatch.delitem(sys.modules, f"turnwire.wires.mcp.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    result = CliRunner().invoke(app, ["mcp"])
    assert result.exit_code == 1
    assert "pip install 'turnwire[mcp]'" in result.stderr


def test_url_with_an_agent_to_import_is_refused() -> None:
    result = CliRunner().invoke(app, ["mcp", "--url", "http://127.0.0.1:9", "--agent", "my_module:agent"])
    assert result.exit_code == 2
    assert "--url asks a server" in result.stderr
