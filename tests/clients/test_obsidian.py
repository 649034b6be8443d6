"""The Obsidian plugin: its own tests, in an Obsidian that is mocked at its edge, with streams from a real server.

They are in clients/obsidian/tests. Here is the server, whose agent does what they write in their messages.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import quick_settings, serving, within
from tests.vaults import vault
from turnwire import AgentError, Turn, Turnwire
from turnwire.core.approvals import WaitForApproval
from turnwire.core.events import (
    ApprovalRequestEvent,
    CitationEvent,
    Event,
    ReasoningEvent,
    ToolCallEvent,
    ToolResultEvent,
)

__all__ = ["vault"]

PLUGIN = Path(__file__).parents[2] / "clients" / "obsidian"
_INSTALL_SECONDS = 300
_RUN_SECONDS = 240

pytestmark = pytest.mark.timeout(_INSTALL_SECONDS + _RUN_SECONDS)


@pytest.fixture(scope="session")
def plugin(node: str) -> Path:
    """Its folder, with what it is built and tested with installed as its lock file says."""
    lock, stamp = PLUGIN / "package-lock.json", PLUGIN / "node_modules" / ".turnwire-stamp"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            print("Installing what the Obsidian plugin is tested with (npm ci) …", file=sys.__stderr__, flush=True)
            command = ["npm", "ci", "--ignore-scripts"]
            done = subprocess.run(command, cwd=PLUGIN, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
            if done.returncode:
                pytest.fail(f"npm could not install what clients/obsidian needs:\n{done.stderr}")
            stamp.write_text(wanted)
    return PLUGIN


class Stage:
    """An agent that plays the script in its message, and one that opens the gates which the other waits at."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def open(self, turn: Turn) -> AsyncIterator[str]:
        self._gates[turn.message].set()
        yield "open"

    async def play(self, turn: Turn) -> AsyncIterator[Event | str]:
        # In a note's conversation the first question names the note before it.
        steps: list[list[Any]] = json.loads(turn.message[turn.message.index("[[") :])
        first = 0
        if turn.resumption is not None:
            first = int(turn.resumption.checkpoint)
            (decision,) = turn.resumption.decisions
            yield ToolResultEvent(decision.call_id, decision.tool, decision.approved, None)
            yield "allowed " if decision.approved else "denied "
        for number, (kind, *told) in enumerate(steps[first:], first + 1):
            match kind:
                case "say":
                    yield told[0]
                case "think":
                    yield ReasoningEvent(told[0])
                case "wait":
                    await self._gates[told[0]].wait()
                case "call":
                    yield ToolCallEvent(f"call_{told[0]}", *told)
                case "result":
                    yield ToolResultEvent(f"call_{told[0]}", told[0], True, "found", 12.0)
                case "ask":
                    yield ToolCallEvent(f"call_{number}", *told)
                    raise WaitForApproval([ApprovalRequestEvent(f"call_{number}", *told)], str(number).encode())
                case "cite":
                    index, note, quote = told
                    url = f"obsidian://open?vault=test&file={note.replace('/', '%2F')}"
                    yield CitationEvent(index, "d", url=url, supporting_quote=quote)
                case _:
                    raise AgentError(told[0])


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


async def test_it_shows_streams_of_a_real_server_through_every_drop(node: str, plugin: Path, vault: Path) -> None:
    stage = Stage()
    settings = quick_settings(vault.parent / "data", vault=vault)
    turnwire = Turnwire(agents={"play": stage.play, "gate": stage.open}, store="memory", settings=settings)
    async with serving(turnwire) as server:
        await npm(plugin, node, "node_modules/vitest/vitest.mjs", "run", TURNWIRE_URL=server.url)


async def test_it_is_built_into_one_file_as_obsidian_loads_it(node: str, plugin: Path, tmp_path: Path) -> None:
    await npm(plugin, node, "build.mjs", str(tmp_path / "main.js"))
    built = (tmp_path / "main.js").read_text()
    assert 'require("obsidian")' in built
    assert "module.exports" in built
    assert len(built) < 100_000
