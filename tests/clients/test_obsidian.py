"""Runs the Obsidian plugin's own tests (clients/obsidian/tests) against a real server and a mocked Obsidian.

The server's agent plays the script in each message.
"""

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples import runs_all
from tests.node_packages import CLIENTS, node_with
from tests.serving import quick_settings, serving, within
from tests.vaults import vault
from turnwire import AgentError, Turn, Turnwire
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    Event,
    ReasoningEvent,
    ToolCallEvent,
    ToolResultEvent,
)

__all__ = ["vault"]

PLUGIN = CLIENTS / "obsidian"
_INSTALL_SECONDS = 300
_RUN_SECONDS = 240

pytestmark = pytest.mark.timeout(_INSTALL_SECONDS + _RUN_SECONDS)


@pytest.fixture(scope="session")
def plugin() -> Path:
    """Return the plugin's folder, after installing its packages."""
    node_with(PLUGIN)
    return PLUGIN


class Stage:
    """Two agents: `play` plays the script in its message, `open` opens the gates that `play` waits for."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def open(self, turn: Turn) -> AsyncIterator[str]:
        self._gates[turn.message].set()
        yield "open"

    async def play(self, turn: Turn) -> AsyncIterator[Event | str]:
        # In a conversation about a note, the note's name comes before the first script.
        steps: list[list[Any]] = json.loads(turn.message[turn.message.index("[[") :])
        for number, (kind, *arguments) in enumerate(steps, 1):
            match kind:
                case "say":
                    yield arguments[0]
                case "think":
                    yield ReasoningEvent(arguments[0])
                case "wait":
                    await self._gates[arguments[0]].wait()
                case "call":
                    yield ToolCallEvent(f"call_{arguments[0]}", *arguments)
                case "result":
                    yield ToolResultEvent(f"call_{arguments[0]}", arguments[0], True, "found", 12.0)
                case "ask":
                    yield ToolCallEvent(f"call_{number}", *arguments)
                    decision = await approval(ApprovalRequestEvent(f"call_{number}", *arguments))
                    yield ToolResultEvent(decision.call_id, decision.tool, decision.approved, None)
                    yield "allowed " if decision.approved else "denied "
                case "cite":
                    index, note, quote = arguments
                    url = f"obsidian://open?vault=test&file={note.replace('/', '%2F')}"
                    yield CitationEvent(index, "d", url=url, supporting_quote=quote)
                case _:
                    raise AgentError(arguments[0])


async def npm(plugin: Path, *command: str, **environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=plugin,
        env={**os.environ, "NO_COLOR": "1", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await within(process.communicate(), _RUN_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()


async def test_plugin_tests_pass_against_a_real_server(node: str, plugin: Path, vault: Path) -> None:
    stage = Stage()
    settings = quick_settings(vault.parent / "data", documents={"vault": vault})
    turnwire = Turnwire(agents={"play": stage.play, "gate": stage.open}, store="memory", settings=settings)
    async with serving(turnwire) as server:
        await npm(plugin, node, "node_modules/vitest/vitest.mjs", "run", TURNWIRE_URL=server.url)


async def test_plugin_builds_into_one_commonjs_file(node: str, plugin: Path, tmp_path: Path) -> None:
    await npm(plugin, node, "build.mjs", str(tmp_path / "main.js"))
    built = (tmp_path / "main.js").read_text()
    assert 'require("obsidian")' in built
    assert "module.exports" in built
    assert len(built) < 100_000


async def test_plugin_has_right_types(node: str, plugin: Path) -> None:
    await npm(plugin, node, "node_modules/typescript/bin/tsc", "--noEmit")


# They take a minute, and look at types again.
if runs_all():

    async def test_plugin_passes_the_rules_of_the_community_review(node: str, plugin: Path) -> None:
        await npm(plugin, node, "node_modules/eslint/bin/eslint.js", ".")


def test_manifest_has_what_the_community_list_asks_for() -> None:
    manifest = json.loads((PLUGIN / "manifest.json").read_text())
    assert set(manifest) == {
        *("id", "name", "version", "minAppVersion", "description", "author", "authorUrl", "isDesktopOnly"),
    }
    assert manifest["id"].islower()
    assert "obsidian" not in f"{manifest['id']} {manifest['name']} {manifest['description']}".lower()
    assert len(manifest["description"]) <= 250
    assert manifest["description"].endswith(".")
    versions = json.loads((PLUGIN / "versions.json").read_text())
    assert versions[manifest["version"]] == manifest["minAppVersion"]
    assert (PLUGIN / "LICENSE").is_file()
